"""A tiny bundle of schema_version 2, whose default is a pair of thresholds.

A bright image is familiar, and a colourful one certain: red is accepted, grey is unsure, and dark grey unfamiliar.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from service.model.pairs import CERTAINTY_EDGES, FAMILIARITY_EDGES
from service.model.typicality import quantiles_of
from tests.conftest import BundleFolder, make_bundle, relative_score, score_of, solid

DARK = solid((3, 3, 3))
FAMILIARITY, CERTAINTY = -2.0, 0.0  # the thresholds of `balanced`, as they are compared


def make_pair_bundle(
    models: Path,
    name: str = "colours",
    version: int = 1,
    *,
    change: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> BundleFolder:
    """Publishes a bundle with the pairs balanced (the default), foreign_only and accept_all."""

    def add_pairs(raw: dict[str, Any]) -> None:
        raw["schema_version"] = 2
        raw["scores"] |= {
            "neighbours": relative_score(0.1, 0.5),
            "energy": relative_score(5.0, 6.0),
            "typicality": {"typicality": _typicality(), **score_of(-3.0)},
            "certainty": {"temperature": raw["temperature"], **score_of(1.0)},
        }
        raw["pairs"] = {"joint": joint_histogram(), "policies": _policies()}
        raw["default"] = {"policy": "balanced"}
        if change is not None:
            change(raw)

    return make_bundle(models, name, version, neighbours=True, change=add_pairs, **options)


def joint_histogram() -> dict[str, Any]:
    """116 correct and 28 wrong images: the less familiar, the less certain; the wrong ones are all of the last row."""
    size = len(FAMILIARITY_EDGES)
    correct = [[4 * (row == column) for column in range(size)] for row in range(size)]
    correct[0][0] += 4
    wrong = [[int(row == size - 1) for _ in range(size)] for row in range(size)]
    return {
        "familiarity_edges": list(FAMILIARITY_EDGES),
        "certainty_edges": list(CERTAINTY_EDGES),
        "correct": correct,
        "wrong": wrong,
    }


def _policies() -> dict[str, Any]:
    both = {"familiarity": FAMILIARITY, "certainty": CERTAINTY}
    return {
        "balanced": {**both, **_expected(0.05, 0.1)},
        "foreign_only": {"familiarity": FAMILIARITY, **_expected(0.05, 0.0)},
        "accept_all": _expected(0.0, 0.0),
    }


def _expected(unfamiliar: float, unsure: float) -> dict[str, Any]:
    shares = {"unfamiliar": unfamiliar, "unsure": unsure, "total": unfamiliar + unsure}
    expected = {name: {"rate": rate, "interval": [rate / 2, rate + 0.02]} for name, rate in shares.items()}
    return {"expected": expected, "n": 144, "how": "made up for tests"}


def _typicality() -> dict[str, Any]:
    return {
        "n": 100,
        "components": {
            "neighbours": list(quantiles_of(np.linspace(0, 1, 100))),
            "energy": list(quantiles_of(np.linspace(1, 11, 100))),
        },
        "weights": {"neighbours": 1.0, "energy": 0.5},
        "minimum": list(quantiles_of(np.linspace(0, 1, 100) ** 1.5)),
    }
