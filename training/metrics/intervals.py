"""Intervals: exact ones of a share, and bootstrap intervals of all detection metrics of one score.

The bootstrap is fast enough for every cell of a table. Scores are sorted once. A resampling is how often each of them
was drawn, and every metric follows from running sums of these counts: sorting again would take most of the time.
"""

import math
from dataclasses import fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from service.model.scores import Floats
from training.metrics.detection import DetectionMetrics, resampled_interval, sorted_scores

RESAMPLES = 1_000
SEED = 0
LEVEL = 0.95

Counts = NDArray[np.int64]
Intervals = dict[str, tuple[float, float]]


def share_interval(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper–Pearson: the share behind k of n lies in it with probability `level` or more, for every n."""
    from scipy.stats import binomtest

    found = binomtest(k, n).proportion_ci(level, "exact")
    return float(found.low), float(found.high)


def upper_bound(k: int, n: int, alpha: float) -> float:
    """Clopper–Pearson: the share behind k of n is at most this with probability 1 − α or more."""
    from scipy.stats import binomtest

    return float(binomtest(k, n, alternative="less").proportion_ci(1 - alpha, "exact").high)


def detection_intervals(accept: ArrayLike, refuse: ArrayLike, n: int = RESAMPLES, seed: int = SEED) -> Intervals:
    """The 95 % percentile interval of each metric of `DetectionMetrics`.

    In-distribution and OOD images are resampled separately. The result equals `bootstrap_interval` of each metric on
    the sorted scores, which draws the same images.
    """
    ranked = _Ranked(sorted_scores(accept, "accept"), sorted_scores(refuse, "refuse"))
    accepted, refused = np.arange(ranked.n_accept), np.arange(ranked.n_refuse)
    low, high = resampled_interval(ranked.metrics, accepted, refused, n=n, seed=seed, level=LEVEL)
    names = (field.name for field in fields(DetectionMetrics))
    return {name: (float(a), float(b)) for name, a, b in zip(names, low, high, strict=True)}


class _Ranked:
    """The rank of each score among its own kind and among the others; scores are sorted and known by their position."""

    def __init__(self, accept: Floats, refuse: Floats) -> None:
        self.n_accept, self.n_refuse = len(accept), len(refuse)
        self.first_equal = np.searchsorted(accept, accept, side="left")
        self.refuse_below = np.searchsorted(refuse, accept, side="left")
        self.refuse_up_to = np.searchsorted(refuse, accept, side="right")
        self.last_equal = np.searchsorted(refuse, refuse, side="right")
        self.accept_up_to = np.searchsorted(accept, refuse, side="right")

    def metrics(self, drawn_accept: Counts, drawn_refuse: Counts, tpr: float = 0.95) -> Floats:
        """The metrics in the order of `DetectionMetrics`, of the scores at the drawn positions."""
        n, m = self.n_accept, self.n_refuse
        accept, refuse = np.bincount(drawn_accept, minlength=n), np.bincount(drawn_refuse, minlength=m)
        before, refused_before = _running(accept), _running(refuse)  # [i]: drawn scores before position i
        below = refused_before[self.refuse_below]
        passing = m - below  # of those to refuse, for a δ just below each score to accept
        # δ just below the highest score to accept that still keeps enough of them; as many as fpr_at_tpr asks for
        keeping = np.searchsorted(before, n - _at_least(tpr, n), side="right") - 1
        catching = np.searchsorted(refused_before[1:], _at_least(tpr, m), side="left")
        # The best δ is just below a score to accept, or above all: elsewhere a higher δ refuses more at no cost.
        error = min(0.5, float(np.min(before[:-1] / n + passing / m)) / 2)
        kept = n - before[self.first_equal]
        caught, lost = refused_before[self.last_equal], before[self.accept_up_to]
        return np.asarray(
            [
                passing[keeping] / m,
                before[self.accept_up_to[catching]] / n,
                error,
                accept @ (below + refused_before[self.refuse_up_to]) / (2 * n * m),
                accept @ (kept / np.maximum(kept + passing, 1)) / n,
                refuse @ (caught / np.maximum(caught + lost, 1)) / m,
            ]
        )


def _running(counts: Counts) -> Counts:
    sums = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=sums[1:])
    return sums


def _at_least(share: float, of: int) -> int:
    return math.ceil((share - 1e-12) * of)
