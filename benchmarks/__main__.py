"""Runs every benchmark, one after another: `make bench`."""

import runpy

NAMES = (
    "branch_cost",
    "augmentation_cost",
    "gradient_cost",
    "neighbours_cost",
    "branch_serving_cost",
    "metrics_cost",
    "loading_stall",
)

for name in NAMES:
    print(f"== {name}", flush=True)
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
