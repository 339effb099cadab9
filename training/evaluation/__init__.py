"""The paper's tables, measured on exported bundles: `confgate-train evaluate`.

Images (`in_distribution`, `ood_sets`) → `outputs` → `scores` → `measure` → `evaluate` → `tables`, `write`, `combine`.
"""
