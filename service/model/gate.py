"""How many images a gate is expected to refuse: measured for a bundle's policies, read off its histogram for others."""

from bisect import bisect_left
from dataclasses import dataclass

from service.model.manifest import Histogram, Manifest
from service.model.scores import HISTOGRAM_EDGES
from service.serving.predictor import Gate


@dataclass(frozen=True, slots=True)
class Expectation:
    """The share that calibration expects to be rejected; a custom threshold's is only known to within `margin`."""

    rate: float
    margin: float
    n: int


def expectation_of(manifest: Manifest, gate: Gate) -> Expectation:
    score = manifest.scores[gate.score]
    policy = score.policies.get(gate.policy)
    if policy is not None:
        return Expectation(policy.expected_rejection_rate, 0.0, policy.n)
    return read_histogram(score.reference, gate.threshold_shown)


def read_histogram(reference: Histogram, shown: float) -> Expectation:
    """The share of calibration images at or below a threshold. Within a bucket they are taken as evenly spread; they
    may all lie on one side, and the margin says how much that could change."""
    n, bucket = sum(reference.counts), bisect_left(HISTOGRAM_EDGES, shown)
    lower = HISTOGRAM_EDGES[bucket - 1] if bucket else 0.0
    share = (shown - lower) / (HISTOGRAM_EDGES[bucket] - lower)
    inside = reference.counts[bucket] / n
    below = sum(reference.counts[:bucket]) / n
    # At the bucket's upper edge nothing is left to guess.
    margin = inside * max(share, 1 - share) if share < 1 else 0.0
    return Expectation(min(1.0, below + inside * share), margin, n)
