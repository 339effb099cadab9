"""What a bundle keeps of its calibration images: histograms of their scores, and the ranks that typicality needs."""

from functools import cached_property
from itertools import pairwise
from typing import Annotated, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, model_validator

from service.model.contract import Contract
from service.model.scores import HISTOGRAM_EDGES, TYPICALITY_COMPONENTS, ScoreName
from service.model.typicality import QUANTILES, Ranks, TypicalityReference


def _edges_are_the_services(edges: tuple[float, ...]) -> tuple[float, ...]:
    if edges != HISTOGRAM_EDGES:
        raise ValueError("the edges must be service.model.scores.HISTOGRAM_EDGES: live traffic is counted with those")
    return edges


class Histogram(Contract):
    """The score of the calibration images as it is shown; counts[i] has edges[i-1] < value <= edges[i]."""

    edges: Annotated[tuple[float, ...], AfterValidator(_edges_are_the_services)] = HISTOGRAM_EDGES
    counts: tuple[NonNegativeInt, ...]

    @model_validator(mode="after")
    def _one_count_per_edge(self) -> Self:
        if len(self.counts) != len(self.edges):
            raise ValueError(f"{len(self.counts)} counts for {len(self.edges)} edges")
        if not sum(self.counts):
            raise ValueError("the counts are all zero")
        return self


class Display(Contract):
    """How an energy is shown between 0 and 1: sigmoid((score − location) / scale)."""

    location: float
    scale: Annotated[float, Field(gt=0)]


def _rising(quantiles: tuple[float, ...]) -> tuple[float, ...]:
    if any(low > high for low, high in pairwise(quantiles)):
        raise ValueError("quantiles must not fall")
    return quantiles


Quantiles = Annotated[tuple[float, ...], Field(min_length=QUANTILES, max_length=QUANTILES), AfterValidator(_rising)]


class Typicality(Contract):
    """The correctly classified calibration images at `typicality.LEVELS`: what an image is compared with."""

    n: PositiveInt
    components: Annotated[dict[ScoreName, Quantiles], Field(min_length=1)]
    # How much a component's rank counts: it is divided by its weight before the lowest is taken. Absent: all 1.
    weights: dict[ScoreName, Annotated[float, Field(gt=0, le=1)]] | None = None
    minimum: Quantiles  # of each image's lowest rank among the components

    @cached_property
    def reference(self) -> TypicalityReference:
        return TypicalityReference(
            {name: Ranks.of_quantiles(values, self.n) for name, values in self.components.items()},
            Ranks.of_quantiles(self.minimum, self.n),
            {str(name): weight for name, weight in (self.weights or {}).items()},
        )

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        unusable = sorted(set(self.components) - TYPICALITY_COMPONENTS)
        if unusable:
            raise ValueError(f"components cannot be {unusable}, only {sorted(TYPICALITY_COMPONENTS)}")
        if self.weights is not None and set(self.weights) != set(self.components):
            raise ValueError(f"weights must be given for {sorted(self.components)}, not {sorted(self.weights)}")
        if self.minimum[0] < 0 or self.minimum[-1] > 1:
            raise ValueError("minimum holds ranks: expected numbers from 0 to 1")
        return self
