"""Policy `risk`: accepted answers are wrong in at most a share r, with probability 1 − α over the calibration images.

Selection with guaranteed risk (Geifman & El-Yaniv 2017): a binary search over the thresholds tries at most ⌈log₂ m⌉ of
them, each with a Clopper–Pearson bound at α / ⌈log₂ m⌉. All bounds then hold at once. Without that correction the best
of all thresholds would be the luckiest one, and would break the promise far more often (a test shows it).
The promise holds for new images drawn like the calibration images, and for no others.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.errors import DataError
from training.metrics.detection import thresholds_between
from training.metrics.intervals import upper_bound


class Promise(NamedTuple):
    """A threshold, and what was observed on the calibration images above it."""

    threshold: float
    bound: float  # on the share of wrong answers
    accepted: int
    wrong: int


def threshold_for_risk(scores: NDArray[np.float64], right: NDArray[np.bool_], risk: float, alpha: float) -> Promise:
    """The δ found that accepts the most images under the promise; if none is found, the error says what it takes."""
    if not 0 < risk < 1 or not 0 < alpha < 1:
        raise DataError(f"risk is {risk:g} and alpha {alpha:g}, expected both between 0 and 1.")
    values, group = np.unique(scores, return_inverse=True)
    accepted = np.cumsum(np.bincount(group)[::-1])[::-1]  # above a cut just below each distinct score
    wrong = np.cumsum(np.bincount(group, weights=~right)[::-1])[::-1].astype(int)
    cuts = thresholds_between(values)
    tries = max(1, math.ceil(math.log2(len(scores))))
    found: Promise | None = None
    low, high = 0, len(values)  # the answer is the lowest cut whose bound is good enough
    for _ in range(tries):
        if low >= high:
            break
        middle = (low + high) // 2
        bound = upper_bound(int(wrong[middle]), int(accepted[middle]), alpha / tries)
        if bound <= risk:
            found = Promise(float(cuts[middle]), bound, int(accepted[middle]), int(wrong[middle]))
            high = middle
        else:
            low = middle + 1
    if found is None:
        needed = math.ceil(math.log(alpha / tries) / math.log1p(-risk))
        raise DataError(
            f"policy 'risk': no threshold on {len(scores)} calibration images, {int((~right).sum())} of them "
            f"misclassified, can promise at most {risk:.2%} wrong answers with probability {1 - alpha:g}. It takes at "
            f"least {needed} accepted images without a mistake. Use more calibration images, or a higher --risk."
        )
    return found
