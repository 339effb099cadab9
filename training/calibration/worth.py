"""What each witness is worth on a model, and whether a learned confidence adds to what every classifier has.

Measured on calibration images and on the calibration share of OOD images; the branch learnt from none of them.
"""

from collections.abc import Mapping

import numpy as np

from service.model.scores import Floats, ScoreName
from training.calibration.calibrate import Calibrated
from training.calibration.table import aligned
from training.metrics.detection import auroc, bootstrap_interval

OTHERS: tuple[ScoreName, ...] = ("max_softmax", "energy", "neighbours")
COMBINED: tuple[ScoreName, ...] = ("typicality", "certainty")
RESAMPLES = 200
FEWEST_MISTAKES = 5


def worth_of_witnesses(calibrated: Calibrated) -> list[str]:
    """A table of AUROC and, where there is a learned confidence, a sentence about each row."""
    names = [name for name in ("confidence", *OTHERS, *COMBINED) if name in calibrated.scores]
    own = {name: calibrated.scores[name].of_images(name, calibrated.in_distribution) for name in names}
    rows: dict[str, Mapping[ScoreName, tuple[Floats, Floats]]] = {}
    right = calibrated.right
    if right is not None and FEWEST_MISTAKES <= np.sum(~right) < len(right):
        title = f"own mistakes ({int(np.sum(~right)):,} of {len(right):,})"
        rows[title] = {name: (own[name][right], own[name][~right]) for name in names}
    for data, outputs in calibrated.ood.items():
        theirs = {name: calibrated.scores[name].of_images(name, outputs) for name in names}
        rows[f"{data} ({len(next(iter(theirs.values()))):,})"] = {name: (own[name], theirs[name]) for name in names}
    if not rows:
        return ["what each score is worth cannot be said: there are too few mistakes and no OOD images"]
    found = {title: {name: auroc(*scores[name]) for name in names} for title, scores in rows.items()}
    lines = [("AUROC, %", *names)]
    lines += [(title, *(f"{100 * of[name]:.1f}" for name in names)) for title, of in found.items()]
    return [
        *aligned(lines).splitlines(),
        *(_verdict(title, scores) for title, scores in rows.items() if "confidence" in names),
        _used(calibrated),
    ]


def _verdict(title: str, scores: Mapping[ScoreName, tuple[Floats, Floats]]) -> str:
    best = max((name for name in OTHERS if name in scores), key=lambda name: auroc(*scores[name]))
    accept, refuse = (np.stack([scores["confidence"][side], scores[best][side]], axis=1) for side in (0, 1))
    low, high = bootstrap_interval(
        lambda a, r: auroc(a[:, 0], r[:, 0]) - auroc(a[:, 1], r[:, 1]), accept, refuse, n=RESAMPLES
    )
    said = "is better than" if low > 0 else "is worse than" if high < 0 else "is not told apart from"
    return f"{title}: confidence {said} {best}, {100 * low:+.1f} to {100 * high:+.1f} points (95 % interval)"


def _used(calibrated: Calibrated) -> str:
    typicality = calibrated.scores["typicality"].typicality
    assert typicality is not None  # every typicality has its reference
    said = f"familiarity (typicality) is combined from {', '.join(typicality.components)}"
    if calibrated.ood:
        return f"{said}, which the OOD images given decided"
    return f"{said}; only OOD images that you give (--ood) can leave one out"
