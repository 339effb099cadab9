"""Selective prediction: how many of the answers that pass a gate are wrong.

Coverage is the share of answers accepted, risk the share of wrong ones among them. A gate accepts the answers whose
score is above δ, so equal scores are accepted or refused together. Where a metric must rank them (AURC), their order is
taken as random and the expectation is returned.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from service.model.scores import Floats


def aurc(score: ArrayLike, right: ArrayLike) -> float:
    """Area under the risk–coverage curve: the mean over k = 1…n of the risk among the k highest scores.

    Geifman, Uziel & El-Yaniv (2019). Among equal scores each order is equally likely: the expected number of
    mistakes grows evenly through them.
    """
    values, correct = _checked(score, right)
    _, group = np.unique(-values, return_inverse=True)
    wrong_share = np.bincount(group, weights=~correct) / np.bincount(group)
    expected_mistakes = np.cumsum(wrong_share[np.sort(group)])
    return float(np.mean(expected_mistakes / np.arange(1, len(values) + 1)))


def expected_calibration_error(probability: ArrayLike, right: ArrayLike, bins: int = 15) -> float:
    """Σ over equal-width bins of (share of images in it) · |accuracy − mean probability| (Guo et al. 2017).

    `probability` is that of the predicted class; bin b holds (b/bins, (b+1)/bins], and the first one also 0.
    """
    values, correct = _checked(probability, right)
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"probabilities lie in {values.min():g}…{values.max():g}: expected 0 to 1")
    if bins < 1:
        raise ValueError(f"bins is {bins}: expected at least 1")
    place = np.searchsorted(np.arange(1, bins) / bins, values, side="left")
    gap = np.bincount(place, weights=correct, minlength=bins) - np.bincount(place, weights=values, minlength=bins)
    return float(np.abs(gap).sum() / len(values))


def _checked(score: ArrayLike, right: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    values, correct = np.asarray(score, np.float64).ravel(), np.asarray(right).ravel()
    if correct.dtype != np.bool_ and not np.isin(correct, (0, 1)).all():
        raise ValueError("`right` holds other values than true and false")
    if len(values) != len(correct):
        raise ValueError(f"{len(values)} scores for {len(correct)} answers: expected as many")
    if not len(values):
        raise ValueError("no scores: expected at least one")
    if not np.isfinite(values).all():
        raise ValueError("the scores hold NaN or infinity: expected finite numbers")
    return values, correct.astype(np.bool_)
