"""The gate: what a graph says about an image, and whether that is enough to accept it.

`read_outputs` turns a batch's outputs into readings. A `Gate` is a score and a threshold on it. `expectation_of` says
how many images a gate should refuse: measured for a bundle's own policies, read off the reference histogram for others.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from service.model.manifest import Histogram, Manifest
from service.model.scores import HISTOGRAM_EDGES, PREPROCESSED_SCORES, Outputs, ScoreName, accept, softmax

CUSTOM = "custom"  # the policy name of a threshold that an operator has set


class Reading(NamedTuple):
    """What a graph says about one image: scores are (unbounded, shown between 0 and 1)."""

    class_id: int
    probabilities: list[float]
    scores: dict[ScoreName, tuple[float, float]]


class Gate(NamedTuple):
    """A score, and the threshold that a policy puts on it."""

    score: ScoreName
    policy: str
    threshold: float
    threshold_shown: float

    def accepts(self, reading: Reading) -> bool:
        """The decision about one image. A reading must hold this gate's score."""
        return accept(reading.scores[self.score][0], self.threshold)


class Decision(NamedTuple):
    """One image's reading, and whether the gate accepts it."""

    reading: Reading
    accepted: bool


def read_outputs(manifest: Manifest, outputs: Outputs) -> list[Reading]:
    """A batch's outputs as readings, with every score that this graph allows."""
    probabilities = softmax(outputs["logits"], manifest.temperature)
    # From the logits themselves: probabilities of different logits may round to the same number.
    class_ids = outputs["logits"].argmax(axis=-1).tolist()
    columns: dict[ScoreName, list[tuple[float, float]]] = {}
    perturbed = "confidence_logit_preprocessed" in outputs or "logits_preprocessed" in outputs
    for name, score in manifest.scores.items():
        if perturbed or name not in PREPROCESSED_SCORES:
            values = score.of_images(name, outputs)
            columns[name] = list(zip(values.tolist(), score.shown(values).tolist(), strict=True))
    return [
        Reading(class_id, row, {name: column[i] for name, column in columns.items()})
        for i, (class_id, row) in enumerate(zip(class_ids, probabilities.tolist(), strict=True))
    ]


def gates_of(manifest: Manifest) -> dict[ScoreName, dict[str, Gate]]:
    """Every score and policy of a bundle, ready to be looked up."""
    return {
        name: {
            policy_name: Gate(name, policy_name, policy.threshold, float(score.shown(policy.threshold)))
            for policy_name, policy in score.policies.items()
        }
        for name, score in manifest.scores.items()
    }


@dataclass(frozen=True, slots=True)
class Expectation:
    """The share that calibration expects to be refused; for a custom threshold it is known only to within `margin`."""

    rate: float
    margin: float
    n: int


def expectation_of(manifest: Manifest, gate: Gate) -> Expectation:
    """What calibration expects of a gate, whether it is one of the bundle's policies or an operator's own threshold."""
    score = manifest.scores[gate.score]
    policy = score.policies.get(gate.policy)
    if policy is not None:
        return Expectation(policy.expected_rejection_rate, 0.0, policy.n)
    return read_histogram(score.reference, gate.threshold_shown)


def read_histogram(reference: Histogram, shown: float) -> Expectation:
    """The share of calibration images at or below a threshold.

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
    return Expectation(min(1.0, below + inside * share), margin, n)
