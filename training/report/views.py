"""Scores as a report shows them: one view for each score, and one of the gate that asks two questions."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.model.scores import Floats, ScoreName, shown
from training.calibration.pair_policies import Pair, PairScores, Refusals, refusals

SCORE_TITLES: dict[ScoreName | Literal["pair"], str] = {
    "confidence": "learned confidence",
    "confidence_preprocessed": "learned confidence, image nudged first",
    "max_softmax": "largest softmax probability",
    "odin": "ODIN",
    "energy": "energy",
    "max_logit": "largest logit",
    "neighbours": "similarity to its neighbours",
    "typicality": "familiarity (typicality)",
    "certainty": "certainty",
    "pair": "familiarity and certainty together",
}


@dataclass(frozen=True)
class ScoreView:
    """One score of all test images, on its unbounded scale, with the thresholds from calibration."""

    name: ScoreName | Literal["pair"]
    in_distribution: Floats
    right: NDArray[np.bool_] | None  # None: the test images have no labels
    ood: dict[str, Floats]  # by set; all_images is not repeated beside its parts
    misclassified_threshold: float | None  # δ, chosen on the model's own calibration images
    ood_threshold: float | None  # δ, chosen on calibration images of the OOD sets; a pair has two, and none here
    location: float = 0.0
    scale: float = 1.0

    @property
    def title(self) -> str:
        return SCORE_TITLES[self.name]

    @property
    def all_ood(self) -> Floats:
        return np.concatenate(list(self.ood.values()))

    def shown(self, values: Floats) -> Floats:
        """Between 0 and 1, as the service shows it."""
        return shown(values, self.location, self.scale)


@dataclass(frozen=True)
class PairView:
    """Both scores of all test images under a pair of thresholds.

    `ranking` is for curves: it ranks images by the lower of familiarity and of the rank of certainty, between 0 and 1.
    """

    policy: str
    pair: Pair
    own: PairScores
    ood: dict[str, PairScores]
    ranking: ScoreView

    @property
    def own_refusals(self) -> Refusals:
        return refusals(self.pair, self.own)

    def ood_refusals(self, name: str) -> Refusals:
        return refusals(self.pair, self.ood[name])

    @property
    def all_ood(self) -> PairScores:
        sets = self.ood.values()
        return PairScores(
            np.concatenate([one.familiarity for one in sets]), np.concatenate([one.certainty for one in sets])
        )
