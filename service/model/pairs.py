"""Pairs of thresholds: one on familiarity (the score `typicality`), one on certainty, and what calibration expects.

An image at or below the first threshold is refused as unfamiliar; of the others, one at or below the second as unsure.
"""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, model_validator

from service.model.contract import Contract, PolicyName, Rate, Text

# Where the joint histogram is cut: finest where thresholds lie, at small p-values and at both ends of certainty.
FAMILIARITY_EDGES: tuple[float, ...] = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1),
    *(0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)
CERTAINTY_EDGES: tuple[float, ...] = (
    *(0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925),
    *(0.95, 0.965, 0.975, 0.985, 0.99, 0.995, 0.998, 0.999, 1.0),
)

Counts = tuple[tuple[NonNegativeInt, ...], ...]


class RefusedShare(Contract):
    """A share of the calibration images, and where that of images like them lies with 95 % probability."""

    rate: Rate
    interval: tuple[Rate, Rate]

    @model_validator(mode="after")
    def _interval_holds_the_rate(self) -> Self:
        if not self.interval[0] <= self.rate <= self.interval[1]:
            raise ValueError("interval must hold rate")
        return self


class ExpectedRefusals(Contract):
    """What a pair refuses of the calibration images, by reason and in all."""

    unfamiliar: RefusedShare
    unsure: RefusedShare
    total: RefusedShare

    @model_validator(mode="after")
    def _reasons_add_up(self) -> Self:
        if abs(self.unfamiliar.rate + self.unsure.rate - self.total.rate) > 1e-9:
            raise ValueError("unfamiliar and unsure must add up to total")
        return self


class PairPolicy(Contract):
    """Two thresholds on the scores' unbounded scales; one that is absent refuses nothing."""

    familiarity: float | None = None
    certainty: float | None = None
    expected: ExpectedRefusals
    n: PositiveInt
    how: Text


def _expected_edges(expected: tuple[float, ...], name: str) -> AfterValidator:
    def check(edges: tuple[float, ...]) -> tuple[float, ...]:
        if edges != expected:
            raise ValueError(f"the edges must be service.model.pairs.{name}")
        return edges

    return AfterValidator(check)


class JointHistogram(Contract):
    """Calibration images by familiarity (rows) and certainty (columns), as they are shown.

    Row i has familiarity_edges[i-1] < p <= familiarity_edges[i], and columns likewise. Images whose class is not known
    are counted as correct.
    """

    familiarity_edges: Annotated[tuple[float, ...], _expected_edges(FAMILIARITY_EDGES, "FAMILIARITY_EDGES")] = (
        FAMILIARITY_EDGES
    )
    certainty_edges: Annotated[tuple[float, ...], _expected_edges(CERTAINTY_EDGES, "CERTAINTY_EDGES")] = CERTAINTY_EDGES
    correct: Counts
    wrong: Counts

    @model_validator(mode="after")
    def _one_count_per_cell(self) -> Self:
        rows, columns = len(self.familiarity_edges), len(self.certainty_edges)
        for name, counts in (("correct", self.correct), ("wrong", self.wrong)):
            if len(counts) != rows or any(len(row) != columns for row in counts):
                raise ValueError(f"{name} must have {rows} rows of {columns} counts")
        if not self.n:
            raise ValueError("the counts are all zero")
        return self

    @property
    def n(self) -> int:
        return sum(map(sum, (*self.correct, *self.wrong)))


class Pairs(Contract):
    """The policies that ask both questions, and the calibration images behind them."""

    joint: JointHistogram
    policies: Annotated[dict[PolicyName, PairPolicy], Field(min_length=1)]
