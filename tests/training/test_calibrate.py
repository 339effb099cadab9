"""Policies from calibration scores."""

import numpy as np
import pytest

from service.gate import accept, softmax
from training.calibrate import CalibrationScores, misclassified_policy, temperature_of, tpr_policy
from training.errors import DataError


def calibration(seed=0, n=2_000, wrong_share=0.1):
    rng = np.random.default_rng(seed)
    right = rng.random(n) > wrong_share
    return CalibrationScores(rng.normal(np.where(right, 2.0, 0.0), 1.0), right)


def test_misclassified_threshold_lies_between_the_two_groups():
    """For equal-width normal scores around 2 and 0 the best threshold is near 1, and the expected rates are counted."""
    sample = calibration(n=200_000)
    policy = misclassified_policy(sample)
    assert policy.threshold == pytest.approx(1.0, abs=0.1)
    assert policy.detection_error == pytest.approx(0.1587, abs=0.01)  # Φ(−1)
    assert policy.expected_rejection_rate == pytest.approx(np.mean(sample.scores <= policy.threshold))
    assert policy.n == 200_000


def test_tpr95_refuses_at_most_one_in_twenty():
    """Policy tpr95 accepts at least 95 % of the calibration images through the service's own gate."""
    sample = calibration()
    policy = tpr_policy(sample, 95)
    kept = np.mean(accept(sample.scores, policy.threshold))
    assert 0.95 <= kept < 0.951
    assert policy.expected_rejection_rate == pytest.approx(1 - kept)


def test_too_few_mistakes_are_refused():
    """With hardly any misclassified image there is no threshold to defend, and the error says what to do."""
    with pytest.raises(DataError, match="at least 20 misclassified"):
        misclassified_policy(CalibrationScores(np.arange(100.0), np.arange(100) > 5))


def test_temperature_recovers_the_one_the_labels_were_drawn_with():
    """Labels drawn from softmax(logits / 2.5) give back T = 2.5."""
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 4, (40_000, 5)).astype(np.float32)
    cumulative = softmax(logits, 2.5).cumsum(axis=1)
    labels = (rng.random((len(logits), 1)) > cumulative).sum(axis=1).clip(max=4)
    assert temperature_of(logits, labels) == pytest.approx(2.5, rel=0.03)
