"""Per score and policy: what every policy would decide about every answered image, and the histogram of the score.

A pair of thresholds is no policy of one score: its label `score` is "pair".

This is counted for each image, so it is kept as plain integers and becomes metric families only when Prometheus
scrapes.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from service.model.gate import CERTAINTY, CUSTOM, FAMILIARITY, Gate, Reason
from service.model.manifest import Score
from service.model.scores import HISTOGRAM_EDGES, SOFTMAX_SCORES, ScoreName

MODEL = ("model", "version")
PAIR = "pair"
ACCEPTED = "none"  # the label `reason` of accepted images
REASONS: tuple[Reason, Reason] = ("unfamiliar", "unsure")


def score_label(gate: Gate) -> str:
    return PAIR if gate.is_pair else gate.score


def reasons_of(score: str) -> tuple[Reason, ...]:
    """Why a policy with this label `score` can refuse an image."""
    return REASONS if score == PAIR else ("unsure",) if score in SOFTMAX_SCORES else ("unfamiliar",)


class ScoreCounts:
    """How often each histogram bucket and each gap between two thresholds was hit by one score."""

    def __init__(self, score: Score) -> None:
        ranked = sorted(score.policies.items(), key=lambda item: item[1].threshold)
        self.reference = score.reference
        self.policies = tuple(name for name, _ in ranked)
        self._thresholds = [policy.threshold for _, policy in ranked]
        # gaps[k] counts the images that exactly the k laxest policies accept.
        self.gaps = [0] * (len(ranked) + 1)
        self.buckets = [0] * len(HISTOGRAM_EDGES)
        self.sum = 0.0

    def add(self, score: float, shown: float) -> None:
        # bisect_left counts the thresholds below the score: the gate's own `score > threshold`.
        self.gaps[bisect_left(self._thresholds, score)] += 1
        self.buckets[bisect_left(HISTOGRAM_EDGES, shown)] += 1
        self.sum += shown


class PairCounts:
    """How often each cell between the thresholds of a bundle's pairs was hit: two searches, however many pairs."""

    def __init__(self, pairs: Mapping[str, Gate]) -> None:
        self._pairs = pairs
        self._familiarity = sorted({gate.threshold for gate in pairs.values()})
        self._certainty = sorted({_certainty_threshold(gate) for gate in pairs.values()})
        # cells[i][j] counts the images above exactly the i lowest and the j lowest thresholds.
        self._cells = [[0] * (len(self._certainty) + 1) for _ in range(len(self._familiarity) + 1)]

    def add(self, scores: Mapping[ScoreName, tuple[float, float]]) -> None:
        row = self._cells[bisect_left(self._familiarity, scores[FAMILIARITY][0])]
        row[bisect_left(self._certainty, scores[CERTAINTY][0])] += 1

    def decisions(self) -> Iterator[tuple[str, Mapping[Reason | None, int]]]:
        """For each policy how many images it accepts, and refuses for each reason."""
        cells = [list(row) for row in self._cells]
        for name, gate in self._pairs.items():
            familiar = cells[bisect_left(self._familiarity, gate.threshold) + 1 :]
            sure = bisect_left(self._certainty, _certainty_threshold(gate)) + 1
            unsure, accepted = sum(sum(row[:sure]) for row in familiar), sum(sum(row[sure:]) for row in familiar)
            yield name, {None: accepted, "unfamiliar": sum(map(sum, cells)) - accepted - unsure, "unsure": unsure}


def _certainty_threshold(gate: Gate) -> float:
    assert gate.certainty_threshold is not None, "pairs have one"
    return gate.certainty_threshold


class CountedModel(Protocol):
    """A served version as the collector sees it."""

    @property
    def labels(self) -> tuple[str, str]: ...

    @property
    def scores(self) -> Mapping[ScoreName, ScoreCounts]: ...

    @property
    def pairs(self) -> PairCounts: ...

    @property
    def custom_score(self) -> str | None:
        """The label `score` of the operator's own threshold, or pair of them."""
        ...

    @property
    def custom_decisions(self) -> Mapping[Reason | None, int]: ...


class ScoreCollector(Collector):
    """Turns the counts of the loaded models into metric families at scrape time."""

    def __init__(self, models: Callable[[], Iterable[CountedModel]]) -> None:
        self._models = models

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        live = HistogramMetricFamily(
            "confgate_confidence", "Scores of answered images, shown between 0 and 1.", labels=(*MODEL, "score")
        )
        reference = HistogramMetricFamily(
            "confgate_reference_confidence",
            "Scores of the calibration images, in the same buckets.",
            labels=(*MODEL, "score"),
        )
        decisions = CounterMetricFamily(
            "confgate_policy_decisions",
            "What each policy would have decided about each answered image.",
            labels=(*MODEL, "policy", "score", "decision", "reason"),
        )

        def decided(model: CountedModel, policy: str, score: str, counts: Mapping[Reason | None, int]) -> None:
            labels = (*model.labels, policy, score)
            decisions.add_metric((*labels, "accepted", ACCEPTED), counts[None])
            for reason in reasons_of(score):
                decisions.add_metric((*labels, "rejected", reason), counts[reason])

        for model in self._models():
            for score, counts in model.scores.items():
                labels = (*model.labels, score)
                live.add_metric(labels, _cumulative(counts.buckets), counts.sum)
                reference.add_metric(labels, _cumulative(counts.reference.counts), None)
                gaps = list(counts.gaps)
                for rank, policy in enumerate(counts.policies):
                    rejected, accepted = sum(gaps[: rank + 1]), sum(gaps[rank + 1 :])
                    decided(model, policy, score, {None: accepted, **dict.fromkeys(REASONS, rejected)})
            for policy, counted in model.pairs.decisions():
                decided(model, policy, PAIR, counted)
            if model.custom_score is not None:
                decided(model, CUSTOM, model.custom_score, model.custom_decisions)
        yield from (live, reference, decisions)


def _cumulative(counts: Sequence[int]) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for edge, count in zip(HISTOGRAM_EDGES, list(counts), strict=True):
        total += count
        buckets.append((str(edge), float(total)))
    return [*buckets, ("+Inf", float(total))]
