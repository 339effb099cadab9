"""Policies: thresholds chosen on calibration images, each with how it was chosen and what it is expected to refuse."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Policy
from training.calibration.risk import threshold_for_risk
from training.errors import DataError
from training.metrics.detection import detection_error, threshold_keeping
from training.metrics.intervals import share_interval

FEWEST_MISTAKES = 20  # a threshold from fewer misclassified images would be chance
TARGET_REJECTION = "target_rejection"
RISK = 0.02


@dataclass(frozen=True)
class CalibrationScores:
    """One score of every calibration image, whether it was classified correctly, and the same score of OOD images.

    `right` is None for unlabelled images.
    """

    scores: NDArray[np.float64]
    right: NDArray[np.bool_] | None
    ood: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # by the name of the set


@dataclass(frozen=True)
class Wanted:
    """Which policies to make. Without a `risk`, RISK is tried, and left out if there are too few images."""

    tprs: tuple[int, ...] = (95,)
    risk: float | None = None
    alpha: float = 0.05

    def __post_init__(self) -> None:
        for percent in self.tprs:
            if not 1 <= percent <= 99:
                raise DataError(f"--tpr is {percent}, expected a whole percentage from 1 to 99.")
        for flag, value in (("--risk", self.risk), ("--alpha", self.alpha)):
            if value is not None and not 0 < value < 1:
                raise DataError(f"{flag} is {value:g}, expected a share between 0 and 1, such as 0.05.")


USUAL = Wanted()


def policies(calibration: CalibrationScores, wanted: Wanted = USUAL) -> tuple[dict[str, Policy], list[str]]:
    """Every policy that these images allow, and a sentence about each one they do not."""
    made: dict[str, Policy] = {}
    notes = []

    def add(name: str, make: Callable[[], Policy]) -> None:
        try:
            made[name] = make()
        except DataError as problem:
            notes.append(f"left out {problem}")

    add("misclassified", lambda: misclassified_policy(calibration))
    if calibration.ood:
        made["ood_holdout"] = ood_holdout_policy(calibration)
    made |= {f"tpr{percent}": tpr_policy(calibration, percent) for percent in wanted.tprs}
    risk = RISK if wanted.risk is None else wanted.risk
    add("risk", lambda: risk_policy(calibration, risk, wanted.alpha))
    return made, notes


def misclassified_policy(calibration: CalibrationScores) -> Policy:
    """δ of least detection error between correctly classified and misclassified images; needs no OOD images."""
    right = _known(calibration.right, "misclassified")
    wrong = calibration.scores[~right]
    if len(wrong) < FEWEST_MISTAKES:
        raise DataError(
            f"policy 'misclassified' needs at least {FEWEST_MISTAKES} misclassified calibration images, found "
            f"{len(wrong)} of {len(calibration.scores)}. Use more calibration images."
        )
    if not right.any():
        raise DataError(
            f"policy 'misclassified' needs a correctly classified calibration image, found none of "
            f"{len(calibration.scores)}. Check the order of the labels, and what the pixels are made of."
        )
    best = detection_error(calibration.scores[right], wrong)
    return _policy(
        best.value,
        calibration.scores,
        f"least detection error between {int(right.sum())} correctly classified and {len(wrong)} "
        "misclassified calibration images",
        best.detection_error,
    )


def ood_holdout_policy(calibration: CalibrationScores) -> Policy:
    """δ of least detection error between calibration images and held-out OOD images, as in the paper."""
    ood = np.concatenate(list(calibration.ood.values()))
    best = detection_error(calibration.scores, ood)
    sets = ", ".join(f"{name} ({len(values)})" for name, values in calibration.ood.items())
    return _policy(
        best.value,
        calibration.scores,
        f"least detection error between {len(calibration.scores)} calibration images and images of {sets}",
        best.detection_error,
    )


def tpr_policy(calibration: CalibrationScores, percent: int) -> Policy:
    """δ that keeps `percent` of in-distribution images."""
    threshold = threshold_keeping(percent / 100, calibration.scores)
    return _policy(threshold, calibration.scores, f"keeps {percent} % of in-distribution calibration images")


def risk_policy(calibration: CalibrationScores, risk: float, alpha: float) -> Policy:
    """δ above which at most a share `risk` of answers is wrong, with probability 1 − α (see `risk`)."""
    found = threshold_for_risk(calibration.scores, _known(calibration.right, "risk"), risk, alpha)
    return _policy(
        found.threshold,
        calibration.scores,
        f"at most {risk:.2%} of accepted answers are wrong, with probability {1 - alpha:g} over the calibration "
        f"images ({found.wrong} of {found.accepted} accepted ones were); promised only for images drawn like them",
    )


def _known(right: NDArray[np.bool_] | None, policy: str) -> NDArray[np.bool_]:
    if right is None:
        raise DataError(
            f"policy '{policy}': only labels tell which images are misclassified. Use labelled calibration images."
        )
    return right


def target_rejection_policy(scores: NDArray[np.float64], rate: float) -> Policy:
    """δ that refuses a share `rate` of unlabelled images: the user's own traffic."""
    if not 0 < rate < 1:
        raise DataError(f"--target-rejection is {rate:g}, expected a share between 0 and 1, such as 0.1.")
    if len(scores) * rate < 1:
        raise DataError(
            f"--traffic holds {len(scores)} images, too few to refuse {rate:.2%} of: not one would be. "
            f"Give at least {int(np.ceil(1 / rate))}, or a higher --target-rejection."
        )
    threshold = threshold_keeping(1 - rate, scores)
    return _policy(threshold, scores, f"refuses {rate:.2%} of {len(scores)} unlabelled images of the user's traffic")


def _policy(threshold: float, scores: NDArray[np.float64], how: str, error: float | None = None) -> Policy:
    refused = int(np.sum(scores <= threshold))
    return Policy(
        threshold=threshold,
        expected_rejection_rate=refused / len(scores),
        expected_rejection_interval=share_interval(refused, len(scores)),
        detection_error=error,
        n=len(scores),
        how=how,
    )


def temperature_of(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """The T of least negative log likelihood of softmax(logits / T); T changes what is shown, not the gate."""
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    exact = logits.astype(np.float64)

    def negative_log_likelihood(log_temperature: float) -> float:
        log_p = log_softmax(exact / np.exp(log_temperature), axis=1)
        return float(-log_p[np.arange(len(labels)), labels].mean())

    found = minimize_scalar(negative_log_likelihood, bounds=(np.log(0.05), np.log(20)), method="bounded")
    return float(np.exp(found.x))
