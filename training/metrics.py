"""How well a score separates inputs to accept (positive) from inputs to refuse. Higher score = more to be trusted."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class Threshold(NamedTuple):
    value: float
    detection_error: float


def detection_error(accept: ArrayLike, refuse: ArrayLike) -> Threshold:
    """min over δ of ½·P_accept(s ≤ δ) + ½·P_refuse(s > δ), and the δ that reaches it, midway between two scores.

    Of several equally good thresholds the lowest is taken, which refuses the fewest inputs.
    """
    positive, negative = _sorted(accept, "accept"), _sorted(refuse, "refuse")
    values = np.unique(np.concatenate([positive, negative]))
    candidates = thresholds_between(values)
    missed = np.searchsorted(positive, candidates, side="right") / len(positive)
    passed = 1 - np.searchsorted(negative, candidates, side="right") / len(negative)
    errors = 0.5 * missed + 0.5 * passed
    best = int(np.argmin(errors))
    return Threshold(float(candidates[best]), float(errors[best]))


def detection_error_at(threshold: float, accept: ArrayLike, refuse: ArrayLike) -> float:
    """½·P_accept(s ≤ δ) + ½·P_refuse(s > δ) for one δ."""
    positive, negative = _sorted(accept, "accept"), _sorted(refuse, "refuse")
    return float(0.5 * np.mean(positive <= threshold) + 0.5 * np.mean(negative > threshold))


def threshold_keeping(share: float, accept: ArrayLike) -> float:
    """The highest δ, midway between two scores, above which at least `share` of the inputs to accept lie."""
    positive = _sorted(accept, "accept")
    values, firsts = np.unique(positive, return_index=True)
    kept = 1 - firsts / len(positive)  # of a δ just below each value
    candidates = thresholds_between(values)[:-1]
    return float(candidates[kept >= share - 1e-12][-1])


def thresholds_between(values: Floats) -> Floats:
    """Every way to cut sorted distinct scores: below all, midway between neighbours, above all."""
    middle = values[:-1] + (values[1:] - values[:-1]) / 2
    return np.concatenate([[values[0] - 1], middle, [values[-1] + 1]])


def auroc(accept: ArrayLike, refuse: ArrayLike) -> float:
    """Probability that an input to accept scores above one to refuse; a tie counts one half."""
    positive, negative = _sorted(accept, "accept"), _sorted(refuse, "refuse")
    below = np.searchsorted(negative, positive, side="left")
    not_above = np.searchsorted(negative, positive, side="right")
    return float((below + not_above).mean() / (2 * len(negative)))


def fpr_at_tpr(accept: ArrayLike, refuse: ArrayLike, tpr: float = 0.95) -> float:
    """Share of the inputs to refuse that pass at the highest δ that keeps `tpr` of the inputs to accept."""
    return float(np.mean(_sorted(refuse, "refuse") > threshold_keeping(tpr, accept)))


def _sorted(scores: ArrayLike, name: str) -> Floats:
    array = np.sort(np.asarray(scores, dtype=np.float64).ravel())
    if not len(array):
        raise ValueError(f"no scores to {name}: expected at least one")
    if not np.isfinite(array).all():
        raise ValueError(f"scores to {name} hold NaN or infinity: expected finite numbers")
    return array
