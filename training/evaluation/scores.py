"""Scores of images under a bundle, by ONNX Runtime on its exported graphs: what is measured is what is served.

Every score that the graphs allow is available, also for a bundle that was written before that score existed.
`neighbours`, `typicality` and `certainty` need what a newer bundle holds: a bank of features, quantiles, a temperature.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Bundle
from service.model.scores import PREPROCESSED_SCORES, Floats, ScoreName, score_images
from training.calibration.calibrate import left_out_of_bank
from training.evaluation.outputs import BundleOutputs, ImageSet
from training.metrics.mixed_traffic import joint_rank

FORWARD_SCORES: tuple[ScoreName, ...] = ("max_softmax", "energy", "max_logit")  # any classifier has these
CALIBRATED_SCORES: tuple[ScoreName, ...] = ("neighbours", "typicality", "certainty")  # only where the bundle has them


def scores_of(bundle: Bundle) -> tuple[ScoreName, ...]:
    """Every score that can be computed with this bundle: confidence first, scores of the perturbed graph last."""
    manifest = bundle.manifest
    names: list[ScoreName] = ["confidence"] if manifest.has_confidence else []
    names += FORWARD_SCORES
    names += [name for name in CALIBRATED_SCORES if name in manifest.scores]
    if manifest.preprocessed_score is not None:
        names.append(manifest.preprocessed_score)
    return tuple(names)


@dataclass
class NetworkScores:
    """The scores of one bundle on any set of images, at any ε."""

    outputs: BundleOutputs
    preprocessed: bool = True

    @property
    def names(self) -> tuple[ScoreName, ...]:
        """Every score that the graphs allow, also those without thresholds in the bundle."""
        found = scores_of(self.outputs.bundle)
        return found if self.preprocessed else tuple(name for name in found if name not in PREPROCESSED_SCORES)

    def of(self, score: ScoreName, sets: Iterable[ImageSet], epsilon: float | None) -> Floats:
        """One score [N] on the unbounded scale, computed by the service's functions."""
        stored = self.outputs.bundle.manifest.scores.get(score)
        parts = []
        for images in sets:
            if epsilon is None:
                found = left_out_of_bank(self.outputs.clean(images), images.own_similarity)
            else:
                found = self.outputs.preprocessed(images, epsilon)
            parts.append(score_images(score, found) if stored is None else stored.of_images(score, found))
        return np.concatenate(parts)

    @property
    def has_pair(self) -> bool:
        """Whether the bundle asks both questions."""
        return self.outputs.bundle.manifest.pairs is not None

    def of_pair(self, sets: Iterable[ImageSet], calibration: ImageSet) -> Floats:
        """What ranks images [N] by both questions, between 0 and 1; only of a bundle that has pairs."""
        images = tuple(sets)
        familiarity = self.outputs.bundle.manifest.scores["typicality"]
        return joint_rank(
            familiarity.shown(self.of("typicality", images, None)),
            self.of("certainty", images, None),
            self.of("certainty", [calibration], None),
        )

    def stored_epsilon(self, score: ScoreName) -> float | None:
        """The ε in the bundle, which is served; None for a score without preprocessing."""
        stored = self.outputs.bundle.manifest.scores.get(score)
        return None if stored is None else stored.epsilon

    def right(self, images: ImageSet, labels: NDArray[np.int64] | None) -> NDArray[np.bool_] | None:
        """Whether each image is classified correctly; None for unlabelled images."""
        if labels is None:
            return None
        answers = self.outputs.clean(images)["logits"].argmax(axis=1)
        return np.asarray(answers == labels)
