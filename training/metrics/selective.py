"""Selective prediction: how wrong the answers are that a gate lets pass.

Coverage is the share of answers accepted, risk the share of wrong ones among them. A gate accepts the answers whose
score is above δ, so equal scores pass or fall together; where a metric must rank them one after the other (AURC), their
order is taken as random and the expectation is returned.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from service.model.scores import Floats


@dataclass(frozen=True)
class SelectiveMetrics:
    aurc: float
    excess_aurc: float  # above that of a perfect ranking of the same answers, which puts every mistake last
    error: float  # share of wrong answers at coverage 1
    n: int


def selective_metrics(score: ArrayLike, right: ArrayLike) -> SelectiveMetrics:
    values, correct = _checked(score, right)
    area = aurc(values, correct)
    return SelectiveMetrics(
        aurc=area,
        excess_aurc=area - aurc(correct.astype(np.float64), correct),
        error=float(1 - correct.mean()),
        n=len(values),
    )


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


def risk_at_coverage(score: ArrayLike, right: ArrayLike, coverage: float) -> float:
    """Share of wrong answers among those accepted at the highest δ that accepts at least `coverage`."""
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage is {coverage}: expected a share above 0 and up to 1")
    coverages, risks = _curve(score, right)
    return float(risks[coverages >= coverage - 1e-12][0])


def coverage_at_risk(score: ArrayLike, right: ArrayLike, risk: float) -> float:
    """The largest coverage of any δ whose accepted answers are wrong in at most a share `risk`; 0 where none is.

    Measured, not promised: a δ that keeps a promise on new images is `training.calibration.risk`'s business.
    """
    if not 0 <= risk <= 1:
        raise ValueError(f"risk is {risk}: expected a share from 0 to 1")
    coverages, risks = _curve(score, right)
    return float(coverages[risks <= risk + 1e-12].max(initial=0.0))


def expected_calibration_error(probability: ArrayLike, right: ArrayLike, bins: int = 15) -> float:
    """Σ over equal-width bins of (share of images in it) · |accuracy − mean probability| (Guo et al. 2017).

    `probability` is the one of the answered class; bin b holds (b/bins, (b+1)/bins], and the first one also 0.
    """
    values, correct = _checked(probability, right)
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"probabilities lie in {values.min():g}…{values.max():g}: expected 0 to 1")
    if bins < 1:
        raise ValueError(f"bins is {bins}: expected at least 1")
    place = np.searchsorted(np.arange(1, bins) / bins, values, side="left")
    gap = np.bincount(place, weights=correct, minlength=bins) - np.bincount(place, weights=values, minlength=bins)
    return float(np.abs(gap).sum() / len(values))


def _curve(score: ArrayLike, right: ArrayLike) -> tuple[Floats, Floats]:
    """Coverage and risk of every δ that accepts something, from the fewest accepted to all."""
    values, correct = _checked(score, right)
    _, group = np.unique(-values, return_inverse=True)
    accepted = np.cumsum(np.bincount(group))
    mistakes = np.cumsum(np.bincount(group, weights=~correct))
    return accepted / len(values), mistakes / accepted


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
