"""The gate: what a graph says about an image, and whether that is enough to accept it.

An `OutputReader` turns a batch's outputs into readings. A `Gate` asks one question of a reading, or two: a pair asks
whether the image is familiar, and then whether the model is certain of its class. What calibration expects of a gate is
in `service.model.expectation`.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from service.errors import InferenceFailed
from service.model.manifest import PAIR_SCORES, GraphName, Manifest
from service.model.pairs import PairPolicy
from service.model.references import Display
from service.model.scores import (
    PREPROCESSED_SCORES,
    SOFTMAX_SCORES,
    Floats,
    Numbers,
    Outputs,
    ScoreName,
    accept,
    sigmoid,
    softmax,
)

CUSTOM = "custom"  # the policy name of a threshold that an operator has set
FAMILIARITY, CERTAINTY = PAIR_SCORES

# Why an image is refused: unlike what the model was made for, or of a class that the model cannot tell.
Reason = Literal["unfamiliar", "unsure"]


class Reading(NamedTuple):
    """What a graph says about one image: scores are (unbounded, shown between 0 and 1)."""

    class_id: int
    probabilities: list[float]
    scores: dict[ScoreName, tuple[float, float]]

    @property
    def certainty(self) -> float:
        """The largest probability, as it is shown: different logits may round to one of them, never to a larger."""
        return self.probabilities[self.class_id]


class Decision(NamedTuple):
    """One image's reading, and what the gate makes of it. `reason` says why it is refused; None if it is accepted."""

    reading: Reading
    accepted: bool
    in_distribution: bool
    reason: Reason | None


class Gate(NamedTuple):
    """A score and the threshold that a policy puts on it; a pair has a second threshold, on certainty.

    A threshold of minus infinity, shown as 0, refuses nothing.
    """

    score: ScoreName
    policy: str
    threshold: float
    threshold_shown: float
    certainty_threshold: float | None = None
    certainty_threshold_shown: float | None = None

    @property
    def is_pair(self) -> bool:
        return self.certainty_threshold is not None

    def reason_to_refuse(self, reading: Reading) -> Reason | None:
        """Why an image is refused; None: it is accepted. A reading must hold the scores of this gate."""
        familiar = accept(reading.scores[self.score][0], self.threshold)
        if self.certainty_threshold is None:
            return None if familiar else "unsure" if self.score in SOFTMAX_SCORES else "unfamiliar"
        if not familiar:
            return "unfamiliar"
        return None if accept(reading.scores[CERTAINTY][0], self.certainty_threshold) else "unsure"

    def decide(self, reading: Reading) -> Decision:
        """The decision about one image. Of a pair, only what is unfamiliar is out-of-distribution."""
        reason = self.reason_to_refuse(reading)
        in_distribution = reason != "unfamiliar" if self.is_pair else reason is None
        return Decision(reading, reason is None, in_distribution, reason)


class OutputReader:
    """Turns the outputs of one of a bundle's graphs into readings, with every score that this graph allows."""

    def __init__(self, manifest: Manifest, graph: GraphName) -> None:
        self._temperature = manifest.temperature
        self._scores = {
            name: score
            for name, score in manifest.scores.items()
            if graph == "perturbed" or name not in PREPROCESSED_SCORES
        }
        self._preprocesses_logits = "odin" in self._scores
        # All scores are shown in one step: numpy takes as long for one number as for many.
        displays = [score.display or Display(location=0.0, scale=1.0) for score in self._scores.values()]
        self._has_displays = any(score.display for score in self._scores.values())
        self._certainty_row = list(self._scores).index(CERTAINTY) if CERTAINTY in self._scores else None
        self._locations = np.array([[display.location] for display in displays])
        self._scales = np.array([[display.scale] for display in displays])

    def __call__(self, outputs: Outputs) -> list[Reading | InferenceFailed]:
        """One reading for each image of a batch; an error for an image of which a number is not finite."""
        # Once for all scores: each of them would convert the logits again.
        logits = np.asarray(outputs["logits"], np.float64)
        exact: Numbers = {**outputs, "logits": logits}
        with np.errstate(all="ignore"):  # what is not finite is found below
            probabilities = softmax(logits, self._temperature)
            found: dict[ScoreName, Floats] = {}
            for name, score in self._scores.items():
                found[name] = score.of_images(name, exact, found)
            values = np.array(list(found.values()))
            shown = sigmoid((values - self._locations) / self._scales if self._has_displays else values)
            if self._certainty_row is not None:
                # The number that is shown as the largest probability, not one that may differ in its last digit.
                shown[self._certainty_row] = probabilities.max(axis=-1)
            # A sum is finite only if every number in it is: nearly every batch needs no other check.
            checked = probabilities + logits
            if self._preprocesses_logits:
                checked += outputs["logits_preprocessed"]
            total = float(np.add.reduce(checked, None))
        # From the logits themselves: probabilities of different logits may round to the same number.
        class_ids = logits.argmax(axis=-1).tolist()
        of_images = values.T.tolist()
        total += sum(map(sum, of_images))
        images = zip(class_ids, probabilities.tolist(), of_images, shown.T.tolist(), strict=True)
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


def pairs_of(manifest: Manifest) -> dict[str, Gate]:
    """The pairs of a bundle by the name of their policy; none for a bundle of schema_version 1."""
    if manifest.pairs is None:
        return {}
    return {name: pair_gate(manifest, name, pair) for name, pair in manifest.pairs.policies.items()}


def pair_gate(manifest: Manifest, policy: str, pair: PairPolicy) -> Gate:
    """The gate of a pair of thresholds."""
    familiarity, certainty = (
        (-math.inf, 0.0) if threshold is None else (threshold, float(manifest.scores[score].shown(threshold)))
        for score, threshold in ((FAMILIARITY, pair.familiarity), (CERTAINTY, pair.certainty))
    )
    return Gate(FAMILIARITY, policy, *familiarity, *certainty)
