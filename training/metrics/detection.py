"""How well a score separates inputs to accept (positive) from inputs to refuse. Higher score = more to be trusted.

Conventions, everywhere in this file:
- an input is accepted iff its score is above a threshold δ, and δ lies between two observed scores: equal scores are
  accepted or refused together, so nothing depends on their order;
- shares are fractions from 0 to 1;
- an empty list, NaN and infinities raise a ValueError: a metric of them would mean nothing.

Metrics of answers, which may be correct or wrong, are in `training.metrics.selective`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from service.model.scores import Floats

# The paper's five, in its order.
METRICS = ("fpr_at_95_tpr", "detection_error", "auroc", "aupr_in", "aupr_out")


class Threshold(NamedTuple):
    """δ, and its detection error."""

    value: float
    detection_error: float


@dataclass(frozen=True)
class DetectionMetrics:
    """The paper's five metrics, in-distribution positive, and FPR at 95 % TPR with the other polarity."""

    fpr_at_95_tpr: float  # share of OOD images accepted where 95 % of in-distribution ones are
    fpr_at_95_tpr_out_positive: float  # share of in-distribution images refused where 95 % of OOD ones are
    detection_error: float
    auroc: float
    aupr_in: float
    aupr_out: float


def detection_metrics(accept: ArrayLike, refuse: ArrayLike) -> DetectionMetrics:
    """All metrics of scores of in-distribution inputs (`accept`) against out-of-distribution ones (`refuse`)."""
    positive, negative = sorted_scores(accept, "accept"), sorted_scores(refuse, "refuse")
    return DetectionMetrics(
        fpr_at_95_tpr=fpr_at_tpr(positive, negative),
        fpr_at_95_tpr_out_positive=fpr_at_tpr_out_positive(positive, negative),
        detection_error=detection_error(positive, negative).detection_error,
        auroc=auroc(positive, negative),
        aupr_in=aupr_in(positive, negative),
        aupr_out=aupr_out(positive, negative),
    )


def detection_error(accept: ArrayLike, refuse: ArrayLike) -> Threshold:
    """min over δ of ½·P_accept(s ≤ δ) + ½·P_refuse(s > δ), and the δ that reaches it, midway between two scores.

    If several thresholds are equally good, the lowest is taken: it refuses the fewest inputs.
    """
    positive, negative = sorted_scores(accept, "accept"), sorted_scores(refuse, "refuse")
    values = np.unique(np.concatenate([positive, negative]))
    candidates = thresholds_between(values)
    missed = np.searchsorted(positive, candidates, side="right") / len(positive)
    passed = 1 - np.searchsorted(negative, candidates, side="right") / len(negative)
    errors = 0.5 * missed + 0.5 * passed
    best = int(np.argmin(errors))
    return Threshold(float(candidates[best]), float(errors[best]))


def detection_error_at(threshold: float, accept: ArrayLike, refuse: ArrayLike) -> float:
    """½·P_accept(s ≤ δ) + ½·P_refuse(s > δ) for one δ."""
    positive, negative = sorted_scores(accept, "accept"), sorted_scores(refuse, "refuse")
    return float(0.5 * np.mean(positive <= threshold) + 0.5 * np.mean(negative > threshold))


def threshold_keeping(share: float, accept: ArrayLike) -> float:
    """The highest δ, midway between two scores, above which at least `share` of the inputs to accept lie."""
    values, kept = _kept_from(accept)
    candidates = thresholds_between(values)[:-1]
    return float(candidates[kept >= share - 1e-12][-1])


def thresholds_between(values: Floats) -> Floats:
    """Every way to cut sorted distinct scores: below all, midway between neighbours, above all."""
    low, high = values[:-1], values[1:]
    middle = low / 2 + high / 2  # halves first: the sum of two huge scores would overflow
    # There is no number between neighbouring floats: δ is the lower one then, since a score equal to δ is refused.
    middle = np.where((middle > low) & (middle < high), middle, low)
    below = min(values[0] - 1, np.nextafter(values[0], -np.inf))  # from 2⁵³ on, minus 1 changes nothing
    return np.concatenate([[below], middle, [max(values[-1] + 1, values[-1])]])


def auroc(accept: ArrayLike, refuse: ArrayLike) -> float:
    """Probability that an input to accept scores above one to refuse; a tie counts one half.

    Counted in pairs. The result equals scikit-learn's roc_auc_score, whose checks of every call would take most of the
    time of a bootstrap.
    """
    positive, negative = sorted_scores(accept, "accept"), sorted_scores(refuse, "refuse")
    below = np.searchsorted(negative, positive, side="left")
    not_above = np.searchsorted(negative, positive, side="right")
    return float((below + not_above).mean() / (2 * len(negative)))


def aupr_in(accept: ArrayLike, refuse: ArrayLike) -> float:
    """Average precision with the inputs to accept as positives: Σ (R_k − R_k−1)·P_k over the distinct scores.

    Equal scores are one step of the sum; a trapezoid would interpolate between steps, where no δ lies. scikit-learn
    gets ranks, because it subtracts neighbouring scores to find ties, and the difference of two huge ones overflows.
    """
    from sklearn.metrics import average_precision_score

    positive, negative = sorted_scores(accept, "accept"), sorted_scores(refuse, "refuse")
    _, ranks = np.unique(np.concatenate([positive, negative]), return_inverse=True)
    return float(average_precision_score(_truth(len(positive), len(negative)), ranks))


def aupr_out(accept: ArrayLike, refuse: ArrayLike) -> float:
    """Average precision with the inputs to refuse as positives, found by the lowest scores."""
    return aupr_in(-sorted_scores(refuse, "refuse"), -sorted_scores(accept, "accept"))


def fpr_at_tpr(accept: ArrayLike, refuse: ArrayLike, tpr: float = 0.95) -> float:
    """The least share of the inputs to refuse that passes any δ which keeps `tpr` of the inputs to accept.

    Such a δ lies just below the lowest score that must be kept: inputs with this score or a higher one pass.
    """
    values, kept = _kept_from(accept)
    lowest_kept = values[kept >= tpr - 1e-12][-1]
    return float(np.mean(sorted_scores(refuse, "refuse") >= lowest_kept))


def fpr_at_tpr_out_positive(accept: ArrayLike, refuse: ArrayLike, tpr: float = 0.95) -> float:
    """The other polarity: share of the inputs to accept that are lost where `tpr` of those to refuse are caught."""
    return fpr_at_tpr(-sorted_scores(refuse, "refuse"), -sorted_scores(accept, "accept"), tpr)


def bootstrap_interval(
    metric: Callable[..., float],
    *samples: ArrayLike,
    n: int = 1_000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float]:
    """The percentile interval of `metric(*samples)` over `n` resamplings with replacement.

    Each sample is resampled by itself: in-distribution and OOD images are independent of each other.
    """
    low, high = resampled_interval(metric, *samples, n=n, seed=seed, level=level)
    return float(low), float(high)


def resampled_interval(
    metrics: Callable[..., float | Floats],
    *samples: ArrayLike,
    n: int = 1_000,
    seed: int = 0,
    level: float = 0.95,
) -> Floats:
    """The same for one metric [2] or for several that are computed together [2,K]: the lower ends, the upper ends."""
    arrays = [np.asarray(sample) for sample in samples]
    if not arrays or any(len(array) == 0 for array in arrays):
        raise ValueError("nothing to resample: expected at least one sample, none of them empty")
    if n < 1 or not 0 < level < 1:
        raise ValueError(f"n is {n} and level {level}: expected n from 1 and a level between 0 and 1")
    random = np.random.default_rng(seed)
    values = [metrics(*(array[random.integers(0, len(array), len(array))] for array in arrays)) for _ in range(n)]
    ends: Floats = np.quantile(np.asarray(values), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return ends


def _kept_from(accept: ArrayLike) -> tuple[Floats, Floats]:
    """Distinct scores, ascending, and the share of all scores at or above each: what a δ just below it keeps."""
    positive = sorted_scores(accept, "accept")
    values, firsts = np.unique(positive, return_index=True)
    return values, 1 - firsts / len(positive)


def _truth(positive: int, negative: int) -> NDArray[np.int64]:
    return np.repeat([1, 0], [positive, negative])


def sorted_scores(scores: ArrayLike, name: str) -> Floats:
    """In ascending order; `name` tells in an error message what the scores are for."""
    array = np.sort(np.asarray(scores, dtype=np.float64).ravel())
    if not len(array):
        raise ValueError(f"no scores to {name}: expected at least one")
    if not np.isfinite(array).all():
        raise ValueError(f"scores to {name} hold NaN or infinity: expected finite numbers")
    return array
