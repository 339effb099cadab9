"""Typicality: how many of the images that the model gets right look as unusual as this one, read as a p-value.

Each of several scores is turned into its rank among correctly classified calibration images; the lowest rank, each
divided by the score's weight, says how unusual the image is, and the rank of that lowest rank among the same images is
the p-value: 0.005 means "1 in 200 of the images this model gets right look this unusual". (The lowest rank alone would
promise too much: of two independent ranks one is below 0.005 for 1 image in 100.) No out-of-distribution image is
needed.

A bundle holds each distribution as quantiles at LEVELS, which lie closest together at the low end, where images are
refused; between two of them the rank is interpolated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

QUANTILES = 257
LEVELS: Floats = (np.arange(QUANTILES) / (QUANTILES - 1)) ** 2


def quantiles_of(values: npt.ArrayLike) -> tuple[float, ...]:
    """A sample as a bundle stores it: its quantiles at LEVELS."""
    found = np.quantile(np.asarray(values, np.float64), LEVELS)
    return tuple(np.maximum.accumulate(found).tolist())  # interpolation may round a hair below its neighbour


@dataclass(frozen=True, slots=True)
class Ranks:
    """The distribution of a number over n images, from its quantiles."""

    values: Floats
    levels: Floats
    n: int

    @classmethod
    def of_quantiles(cls, quantiles: npt.ArrayLike, n: int) -> Self:
        # Of equal quantiles the highest level counts: an image's rank is the share of images at or below it.
        backwards, last = np.unique(np.asarray(quantiles, np.float64)[::-1], return_index=True)
        return cls(backwards, LEVELS[QUANTILES - 1 - last], n)

    def __call__(self, values: npt.ArrayLike) -> Floats:
        """Shares strictly between 0 and 1, so that their log-odds are finite: (k + ½) / (n + 1) for k at or below."""
        below = np.interp(np.asarray(values, np.float64), self.values, self.levels, left=0.0) * self.n
        return np.asarray((below + 0.5) / (self.n + 1), np.float64)


def lowest_of(ranks: Mapping[str, Floats], weights: Mapping[str, float]) -> Floats:
    """For each image, its lowest rank, each divided by its weight (1 unless given); at most 1."""
    weighted = [found / weights[name] if name in weights else found for name, found in ranks.items()]
    return np.asarray(np.minimum(np.min(weighted, axis=0), 1.0), np.float64)


def lowest_rank(
    components: Mapping[str, Ranks], scores: Mapping[str, Floats], weights: Mapping[str, float] | None = None
) -> Floats:
    """For each image, the lowest of its ranks: that in the component in which it is most unusual."""
    return lowest_of({name: ranks(scores[name]) for name, ranks in components.items()}, weights or {})


@dataclass(frozen=True, slots=True)
class TypicalityReference:
    """The correctly classified calibration images: the ranks of each component, and those of their minimum."""

    components: Mapping[str, Ranks]
    minimum: Ranks
    weights: Mapping[str, float] = field(default_factory=dict)

    def log_odds(self, scores: Mapping[str, Floats]) -> Floats:
        """The score [N] on the unbounded scale; its sigmoid is the p-value."""
        p = self.minimum(lowest_rank(self.components, scores, self.weights))
        return np.asarray(np.log(p) - np.log1p(-p), np.float64)
