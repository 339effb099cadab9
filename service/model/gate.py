"""The gate: what a graph says about an image, and whether that is enough to accept it.

An `OutputReader` turns a batch's outputs into readings. A `Gate` is a score and a threshold on it. `expectation_of`
says how many images a gate should refuse: measured for a bundle's own policies, read off the reference histogram for
others.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from service.errors import InferenceFailed
from service.model.manifest import Display, GraphName, Histogram, Manifest
from service.model.scores import HISTOGRAM_EDGES, PREPROCESSED_SCORES, Outputs, ScoreName, accept, sigmoid, softmax

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


class OutputReader:
    """Turns the outputs of one of a bundle's graphs into readings, with every score that this graph allows."""

    def __init__(self, manifest: Manifest, graph: GraphName) -> None:
        self._temperature = manifest.temperature
        self._scores = {
            name: score
            for name, score in manifest.scores.items()
            if graph == "perturbed" or name not in PREPROCESSED_SCORES
        }
        # The other outputs are scores as they are.
        self._not_scores = ("logits", "logits_preprocessed") if "odin" in self._scores else ("logits",)
        # All scores are shown in one step: numpy takes as long for one number as for many.
        displays = [score.display or Display(location=0.0, scale=1.0) for score in self._scores.values()]
        self._locations = np.array([[display.location] for display in displays])
        self._scales = np.array([[display.scale] for display in displays])

    def __call__(self, outputs: Outputs) -> list[Reading | InferenceFailed]:
        """One reading for each image of a batch; an error for an image of which a number is not finite."""
        logits = outputs["logits"]
        with np.errstate(all="ignore"):  # what is not finite is found below
            probabilities = softmax(logits, self._temperature)
            values = np.array([score.of_images(name, outputs) for name, score in self._scores.items()])
            shown = sigmoid((values - self._locations) / self._scales)
            # A sum is finite only if every number in it is: nearly every batch needs no other check.
            total = float(np.add.reduce(probabilities, None) + np.add.reduce(values, None))
            for name in self._not_scores:
                total += float(np.add.reduce(outputs[name], None))
        # From the logits themselves: probabilities of different logits may round to the same number.
        class_ids = logits.argmax(axis=-1).tolist()
        images = zip(class_ids, probabilities.tolist(), values.T.tolist(), shown.T.tolist(), strict=True)
        readings: list[Reading | InferenceFailed] = [
            Reading(class_id, row, dict(zip(self._scores, zip(of_image, as_shown, strict=True), strict=True)))
            for class_id, row, of_image, as_shown in images
        ]
        if not math.isfinite(total):
            numbers = np.column_stack([*outputs.values(), probabilities, values.T])
            for place in np.flatnonzero(~np.isfinite(numbers).all(axis=1)).tolist():
                # Compared with a threshold, NaN would be a refusal and infinity an answer like any other.
                readings[place] = InferenceFailed("the model's outputs for this image are not finite")
        return readings


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
