"""Policies: thresholds chosen on the calibration split, each with what it is expected to refuse."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.bundle import Policy
from training.errors import DataError
from training.metrics import detection_error, threshold_keeping

FEWEST_MISTAKES = 20  # a threshold from fewer misclassified images would be an accident


@dataclass(frozen=True)
class CalibrationScores:
    """One score of every calibration image, and whether the model classified it rightly."""

    scores: NDArray[np.float64]
    right: NDArray[np.bool_]

    def rejected_share(self, threshold: float) -> float:
        return float(np.mean(self.scores <= threshold))


def misclassified_policy(calibration: CalibrationScores) -> Policy:
    """δ of least detection error between right and wrong answers: no out-of-distribution image is needed."""
    wrong = calibration.scores[~calibration.right]
    if len(wrong) < FEWEST_MISTAKES:
        raise DataError(
            f"policy 'misclassified' needs at least {FEWEST_MISTAKES} misclassified calibration images, found "
            f"{len(wrong)} of {len(calibration.scores)}. Use more calibration images."
        )
    best = detection_error(calibration.scores[calibration.right], wrong)
    return Policy(
        threshold=best.value,
        expected_rejection_rate=calibration.rejected_share(best.value),
        detection_error=best.detection_error,
        n=len(calibration.scores),
        how=(
            f"least detection error between {int(calibration.right.sum())} rightly and {len(wrong)} wrongly "
            f"classified calibration images"
        ),
    )


def tpr_policy(calibration: CalibrationScores, percent: int) -> Policy:
    """δ that keeps `percent` of in-distribution images."""
    threshold = threshold_keeping(percent / 100, calibration.scores)
    return Policy(
        threshold=threshold,
        expected_rejection_rate=calibration.rejected_share(threshold),
        n=len(calibration.scores),
        how=f"keeps {percent} % of in-distribution calibration images",
    )


def policies(calibration: CalibrationScores) -> dict[str, Policy]:
    return {"misclassified": misclassified_policy(calibration), "tpr95": tpr_policy(calibration, 95)}


def temperature_of(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """The T of least negative log likelihood of softmax(logits / T); it changes what is shown, not the gate."""
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    exact = logits.astype(np.float64)

    def negative_log_likelihood(log_temperature: float) -> float:
        log_p = log_softmax(exact / np.exp(log_temperature), axis=1)
        return float(-log_p[np.arange(len(labels)), labels].mean())

    found = minimize_scalar(negative_log_likelihood, bounds=(np.log(0.05), np.log(20)), method="bounded")
    return float(np.exp(found.x))
