"""The two halves of the calibration images.

What proves a promise must not have been looked at before: half A gives the ranks, the bank of neighbours, the
temperature and the order in which thresholds are tried; half B tests the promise.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FEWEST_TO_SPLIT = 200  # with fewer images neither half would say much: half A is then all of them
SEED = 0

Indices = NDArray[np.int64]


class Halves(NamedTuple):
    """Indices of calibration images, in their order; `b` is empty where there are too few to split."""

    a: Indices
    b: Indices


def halves_of(images: int) -> Halves:
    """The same halves for the same number of images: whoever needs half A finds the same one."""
    if images < FEWEST_TO_SPLIT:
        return Halves(np.arange(images), np.arange(0))
    order = np.random.default_rng(SEED).permutation(images)
    middle = (images + 1) // 2
    return Halves(np.sort(order[:middle]), np.sort(order[middle:]))
