"""What calibration expects a gate to refuse: measured for a bundle's own policies, read off histograms for others."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.model.gate import Gate, Reason
from service.model.manifest import Manifest
from service.model.pairs import JointHistogram
from service.model.references import Histogram
from service.model.scores import HISTOGRAM_EDGES, SOFTMAX_SCORES, Floats


@dataclass(frozen=True, slots=True)
class Expectation:
    """The share that calibration expects to be refused; for a custom threshold it is known only to within `margin`.

    `rate` is the sum of `unfamiliar` and `unsure`, each of which has its own margin: a pair may be exact in one.
    """

    rate: float
    margin: float
    n: int
    unfamiliar: float
    unsure: float
    unfamiliar_margin: float
    unsure_margin: float

    def of(self, reason: Reason) -> tuple[float, float]:
        """The share that is refused for this reason, and its margin."""
        if reason == "unfamiliar":
            return self.unfamiliar, self.unfamiliar_margin
        return self.unsure, self.unsure_margin


def expectation_of(manifest: Manifest, gate: Gate) -> Expectation:
    """What calibration expects of a gate, whether it is one of the bundle's policies or an operator's own threshold."""
    if gate.is_pair:
        return _of_pair(manifest, gate)
    score = manifest.scores[gate.score]
    policy = score.policies.get(gate.policy)
    rate, margin, n = (
        (policy.expected_rejection_rate, 0.0, policy.n)
        if policy is not None
        else read_histogram(score.reference, gate.threshold_shown)
    )
    if gate.score in SOFTMAX_SCORES:
        return Expectation(rate, margin, n, 0.0, rate, 0.0, margin)
    return Expectation(rate, margin, n, rate, 0.0, margin, 0.0)


def _of_pair(manifest: Manifest, gate: Gate) -> Expectation:
    assert manifest.pairs is not None
    assert gate.certainty_threshold_shown is not None
    policy = manifest.pairs.policies.get(gate.policy)
    if policy is None:
        return read_joint_histogram(manifest.pairs.joint, gate.threshold_shown, gate.certainty_threshold_shown)
    expected = policy.expected
    return Expectation(expected.total.rate, 0.0, policy.n, expected.unfamiliar.rate, expected.unsure.rate, 0.0, 0.0)


def read_joint_histogram(joint: JointHistogram, familiarity: float, certainty: float) -> Expectation:
    """What a pair of thresholds, as they are shown, refuses of the calibration images, by reason.

    Within a row and a column the images are taken as evenly spread; the margin says how much it would change if all of
    them lay on one side.
    """
    counts = np.asarray(joint.correct, np.float64) + np.asarray(joint.wrong, np.float64)
    rows, row_margins = _shares_below(joint.familiarity_edges, familiarity)
    columns, column_margins = _shares_below(joint.certainty_edges, certainty)
    n = float(counts.sum())
    unfamiliar = float(rows @ counts.sum(axis=1)) / n
    unsure = float((1 - rows) @ counts @ columns) / n
    unfamiliar_margin = float(row_margins @ counts.sum(axis=1)) / n
    margin = unfamiliar_margin + float((1 - rows) @ counts @ column_margins) / n
    total = min(1.0, unfamiliar + unsure)
    # Of a cell that a threshold divides, any share may be familiar and below the certainty that is asked for.
    fewest = np.outer(np.where(row_margins > 0, 0, 1 - rows), np.where(column_margins > 0, 0, columns))
    most = np.outer(np.where(row_margins > 0, 1, 1 - rows), np.where(column_margins > 0, 1, columns))
    taken = np.outer(1 - rows, columns)
    unsure_margin = float((counts * np.maximum(taken - fewest, most - taken)).sum()) / n
    return Expectation(total, margin, int(n), unfamiliar, total - unfamiliar, unfamiliar_margin, unsure_margin)


def _shares_below(edges: Sequence[float], threshold: float) -> tuple[Floats, Floats]:
    """For each bucket the share at or below a threshold, and how far off that may be."""
    below = np.zeros(len(edges))
    margin = np.zeros(len(edges))
    bucket = bisect_left(edges, threshold)
    below[:bucket] = 1.0
    lower = edges[bucket - 1] if bucket else 0.0
    share = (threshold - lower) / (edges[bucket] - lower)
    below[bucket] = share
    if 0 < share < 1:  # at an edge of the bucket nothing is left to guess
        margin[bucket] = max(share, 1 - share)
    return below, margin


def read_histogram(reference: Histogram, shown: float) -> tuple[float, float, int]:
    """The share of calibration images at or below a threshold, how far off that may be, and the number of images.

    Within a bucket the images are taken as evenly spread. They may all lie on one side of the threshold: the margin
    says how much that would change.
    """
    n, bucket = sum(reference.counts), bisect_left(HISTOGRAM_EDGES, shown)
    lower = HISTOGRAM_EDGES[bucket - 1] if bucket else 0.0
    share = (shown - lower) / (HISTOGRAM_EDGES[bucket] - lower)
    inside = reference.counts[bucket] / n
    below = sum(reference.counts[:bucket]) / n
    # At the bucket's upper edge nothing is left to guess.
    margin = inside * max(share, 1 - share) if share < 1 else 0.0
    return min(1.0, below + inside * share), margin, n
