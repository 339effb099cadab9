"""Per score and policy: what every policy would decide about every answered image, and the histogram of the score.

This is counted for each image, so it is kept as plain integers and becomes metric families only when Prometheus
scrapes.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from service.model.gate import CUSTOM
from service.model.manifest import Score
from service.model.scores import HISTOGRAM_EDGES, ScoreName

MODEL = ("model", "version")


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


class CountedModel(Protocol):
    """A served version as the collector sees it."""

    @property
    def labels(self) -> tuple[str, str]: ...

    @property
    def scores(self) -> Mapping[ScoreName, ScoreCounts]: ...

    @property
    def custom_score(self) -> ScoreName | None: ...

    @property
    def custom_decisions(self) -> Sequence[int]:
        """Rejected, accepted."""
        ...


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
            labels=(*MODEL, "policy", "score", "decision"),
        )
        for model in self._models():
            for score, counts in model.scores.items():
                labels = (*model.labels, score)
                live.add_metric(labels, _cumulative(counts.buckets), counts.sum)
                reference.add_metric(labels, _cumulative(counts.reference.counts), None)
                gaps = list(counts.gaps)
                for rank, policy in enumerate(counts.policies):
                    rejected, accepted = sum(gaps[: rank + 1]), sum(gaps[rank + 1 :])
                    decisions.add_metric((*model.labels, policy, score, "accepted"), accepted)
                    decisions.add_metric((*model.labels, policy, score, "rejected"), rejected)
            if model.custom_score is not None:
                rejected, accepted = model.custom_decisions
                decisions.add_metric((*model.labels, CUSTOM, model.custom_score, "accepted"), accepted)
                decisions.add_metric((*model.labels, CUSTOM, model.custom_score, "rejected"), rejected)
        yield from (live, reference, decisions)


def _cumulative(counts: Sequence[int]) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for edge, count in zip(HISTOGRAM_EDGES, list(counts), strict=True):
        total += count
        buckets.append((str(edge), float(total)))
    return [*buckets, ("+Inf", float(total))]
