"""Which score is best: for catching OOD images, and for catching the model's own mistakes.

Scores are compared on calibration images alone. A score other than the usual one is recommended only if the difference
in AUROC is more than chance explains: its bootstrap interval lies above zero.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from service.model.bundle import Default
from service.model.scores import Floats, ScoreName
from training.calibration.calibrate import Calibrated
from training.metrics.detection import auroc, bootstrap_interval

Purpose = Literal["ood", "mistakes"]
POLICIES: dict[Purpose, str] = {"ood": "ood_holdout", "mistakes": "misclassified"}
AIMS: dict[Purpose, str] = {"ood": "OOD images", "mistakes": "its own mistakes"}
RESAMPLES = 200


@dataclass(frozen=True)
class Recommendation:
    purpose: Purpose
    score: ScoreName
    usual: ScoreName
    auroc: dict[ScoreName, float]
    gain: tuple[float, float] | None  # 95 % interval of the best score's AUROC above the usual one's; None: the same
    n: tuple[int, int]  # images to accept, images to refuse

    @property
    def default(self) -> Default:
        return Default(score=self.score, policy=POLICIES[self.purpose])

    def __str__(self) -> str:
        ranked = sorted(self.auroc.items(), key=lambda item: -item[1])
        figures = ", ".join(f"{name} {value:.2%}" for name, value in ranked)
        best = ranked[0][0]
        if self.gain is None:
            reason = "it separates best"
        else:
            low, high = (100 * edge for edge in self.gain)
            verdict = "" if self.score == best else ", which chance may explain"
            reason = f"{best} is {low:+.2f} to {high:+.2f} points from {self.usual} (95 % interval){verdict}"
        return (
            f"to catch {AIMS[self.purpose]}, use {self.score}: {reason}. "
            f"AUROC, {self.n[0]:,} against {self.n[1]:,} calibration images: {figures}."
        )


def recommendations(calibrated: Calibrated, usual: ScoreName) -> dict[Purpose, Recommendation]:
    """One for each purpose for which there are images."""
    in_distribution = {
        name: score.of_images(name, calibrated.in_distribution) for name, score in calibrated.scores.items()
    }
    right = calibrated.right
    found: dict[Purpose, Recommendation] = {}
    if calibrated.ood:
        ood = {
            name: np.concatenate([score.of_images(name, outputs) for outputs in calibrated.ood.values()])
            for name, score in calibrated.scores.items()
        }
        found["ood"] = best_score("ood", usual, in_distribution, ood)
    if right is not None and right.any() and not right.all():
        found["mistakes"] = best_score(
            "mistakes",
            usual,
            {name: values[right] for name, values in in_distribution.items()},
            {name: values[~right] for name, values in in_distribution.items()},
        )
    return found


def best_score(
    purpose: Purpose, usual: ScoreName, accept: dict[ScoreName, Floats], refuse: dict[ScoreName, Floats]
) -> Recommendation:
    """The best score for a purpose, or the usual one if chance explains the difference; the report uses it too."""
    areas = {name: auroc(accept[name], refuse[name]) for name in accept}
    best = max(areas, key=lambda name: (areas[name], name == usual))
    n = (len(accept[best]), len(refuse[best]))
    if best == usual:
        return Recommendation(purpose, usual, usual, areas, None, n)
    gain = bootstrap_interval(
        lambda a, r: auroc(a[:, 0], r[:, 0]) - auroc(a[:, 1], r[:, 1]),
        np.stack([accept[best], accept[usual]], axis=1),
        np.stack([refuse[best], refuse[usual]], axis=1),
        n=RESAMPLES,
    )
    return Recommendation(purpose, best if gain[0] > 0 else usual, usual, areas, gain, n)
