"""Separation metrics, against scikit-learn, brute force and hand-worked values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from training.metrics import auroc, detection_error, detection_error_at, fpr_at_tpr, threshold_keeping

scores = st.lists(st.integers(-5, 5), min_size=1, max_size=30)  # few values, so that ties are the rule


def test_detection_error_by_hand():
    """Accept {2,3,4}, refuse {1,2}: δ = 2.5 loses one of three and lets none pass, so the error is ½·⅓."""
    best = detection_error([2, 3, 4], [1, 2])
    assert best.detection_error == pytest.approx(1 / 6)
    assert best.value == pytest.approx(2.5)


@settings(max_examples=200, deadline=None)
@given(accept=scores, refuse=scores)
def test_detection_error_is_the_minimum_over_all_thresholds(accept, refuse):
    """No threshold does better, and the one returned does as well as it says."""
    best = detection_error(accept, refuse)
    everywhere = [detection_error_at(t, accept, refuse) for t in np.arange(-7, 7, 0.25)]
    assert best.detection_error == pytest.approx(min(everywhere))
    assert detection_error_at(best.value, accept, refuse) == pytest.approx(best.detection_error)


@settings(max_examples=200, deadline=None)
@given(accept=scores, refuse=scores)
def test_auroc_equals_scikit_learn(accept, refuse):
    """AUROC agrees with scikit-learn, ties included."""
    labels = [1] * len(accept) + [0] * len(refuse)
    assert auroc(accept, refuse) == pytest.approx(roc_auc_score(labels, accept + refuse))


@settings(max_examples=200, deadline=None)
@given(accept=scores, percent=st.integers(1, 100))
def test_threshold_keeps_the_share_and_is_the_highest_that_does(accept, percent):
    """At least the share lies above δ, no observed score equals δ, and the next cut up keeps too few."""
    delta = threshold_keeping(percent / 100, accept)
    values = np.asarray(accept)
    assert np.mean(values > delta) >= percent / 100 - 1e-9
    assert delta not in values
    assert np.mean(values > values[values > delta].min()) < percent / 100


def test_fpr_at_tpr_by_hand():
    """Of 20 accepted scores 1…20 the highest cut that keeps 95 % is 1.5; two of four refused scores pass it."""
    assert fpr_at_tpr(range(1, 21), [0, 1, 2, 30]) == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [[], [float("nan")], [float("inf")]])
def test_unusable_scores_are_refused(bad):
    """No scores, NaN and infinity are errors, not numbers."""
    with pytest.raises(ValueError, match="expected"):
        auroc(bad, [0.0])
    with pytest.raises(ValueError, match="expected"):
        detection_error([0.0], bad)
