"""Policies from calibration scores."""

import numpy as np
import pytest

from service.model.scores import accept, softmax
from training.calibration.policies import (
    CalibrationScores,
    Wanted,
    misclassified_policy,
    ood_holdout_policy,
    policies,
    target_rejection_policy,
    temperature_of,
    tpr_policy,
)
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


def test_ood_holdout_takes_all_sets_together():
    """In-distribution scores around 4, two OOD sets around 0: δ is near 2, and the sets are named with their sizes."""
    random = np.random.default_rng(0)
    outside = {"svhn": random.normal(0, 1, 5_000), "mnist": random.normal(0, 1, 5_000)}
    policy = ood_holdout_policy(CalibrationScores(random.normal(4, 1, 10_000), np.ones(10_000, bool), outside))
    assert policy.threshold == pytest.approx(2.0, abs=0.2)
    assert policy.detection_error == pytest.approx(0.0228, abs=0.004)  # Φ(−2)
    assert policy.how.endswith("svhn (5000), mnist (5000)")


def test_every_policy_has_its_interval_and_says_how():
    """All that the images allow are made; each rate lies in its interval, which narrows as √n."""
    outside = {"svhn": np.random.default_rng(1).normal(-3, 1, 500)}
    few, many = (
        policies(CalibrationScores(sample.scores, sample.right, outside), Wanted(tprs=(90, 95)))[0]
        for sample in (calibration(n=2_000), calibration(n=8_000))
    )
    assert list(many) == ["misclassified", "ood_holdout", "tpr90", "tpr95", "risk"]
    assert "promised only for images drawn like them" in many["risk"].how
    for policy in many.values():
        low, high = policy.expected_rejection_interval
        assert low < policy.expected_rejection_rate < high
    narrow, wide = (made["tpr90"].expected_rejection_interval for made in (many, few))
    assert (wide[1] - wide[0]) / (narrow[1] - narrow[0]) == pytest.approx(2.0, rel=0.1)


def test_what_the_images_do_not_allow_is_left_out_with_a_note():
    """With too few images for a promise, or too few mistakes, the policy is left out, and the others are made."""
    sample = calibration(n=200, wrong_share=0.3)
    made, notes = policies(sample)
    assert "risk" not in made
    assert "left out policy 'risk'" in notes[0]
    assert "can promise at most 1.00%" in policies(sample, Wanted(risk=0.01))[1][0]
    made, notes = policies(calibration(n=100, wrong_share=0.0))
    assert set(made) == {"tpr95"}
    assert "'misclassified' needs at least 20 misclassified calibration images, found 0 of 100" in notes[0]
    with pytest.raises(DataError, match="--tpr is 100"):
        Wanted(tprs=(100,))
    for wrong in ({"risk": 1.0}, {"alpha": 0.0}):
        with pytest.raises(DataError, match="expected a share between 0 and 1"):
            Wanted(**wrong)


def test_unlabelled_images_are_enough_for_a_rejection_rate():
    """A tenth of the traffic is refused; more than there are images, or none at all, is an error."""
    scores = np.random.default_rng(0).normal(5, 2, 1_000)
    policy = target_rejection_policy(scores, 0.1)
    assert policy.expected_rejection_rate == pytest.approx(0.1)
    assert np.mean(scores <= policy.threshold) == pytest.approx(0.1)
    with pytest.raises(DataError, match=r"holds 5 images, too few to refuse 10.00% of.*at least 10"):
        target_rejection_policy(scores[:5], 0.1)
    with pytest.raises(DataError, match="between 0 and 1"):
        target_rejection_policy(scores, 1.0)


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
