"""Detection metrics, against scikit-learn, brute force and hand-worked values."""

from dataclasses import astuple, fields

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from tests.properties import examples
from training.metrics.detection import (
    DetectionMetrics,
    auroc,
    bootstrap_interval,
    detection_error,
    detection_error_at,
    detection_metrics,
    fpr_at_tpr,
    fpr_at_tpr_out_positive,
    resampled_interval,
    threshold_keeping,
    thresholds_between,
)
from training.metrics.intervals import detection_intervals

scores = st.lists(st.integers(-5, 5), min_size=1, max_size=30)  # few values, so that ties are the rule
any_scores = st.lists(st.floats(-1e308, 1e308, allow_nan=False), min_size=1, max_size=12)  # as far as floats go


def test_detection_error_by_hand():
    """Accept {2,3,4}, refuse {1,2}: δ = 2.5 loses one of three and lets none pass, so the error is ½·⅓."""
    best = detection_error([2, 3, 4], [1, 2])
    assert best.detection_error == pytest.approx(1 / 6)
    assert best.value == pytest.approx(2.5)


@given(accept=scores, refuse=scores)
def test_detection_error_is_the_minimum_over_all_thresholds(accept, refuse):
    """No threshold does better, and the one returned does as well as it says."""
    best = detection_error(accept, refuse)
    everywhere = [detection_error_at(t, accept, refuse) for t in np.arange(-7, 7, 0.25)]
    assert best.detection_error == pytest.approx(min(everywhere))
    assert detection_error_at(best.value, accept, refuse) == pytest.approx(best.detection_error)


@given(accept=scores | any_scores, refuse=scores | any_scores)
@example(accept=[1e308, -1e308], refuse=[1e308])  # neighbours whose difference is no float
def test_all_metrics_equal_brute_force(accept, refuse):
    """Each of the six is what counting every pair, every threshold and every step of the curve gives."""
    found = detection_metrics(accept, refuse)
    inside, outside = np.asarray(accept, float), np.asarray(refuse, float)
    wins = (inside[:, None] > outside).mean() + 0.5 * (inside[:, None] == outside).mean()
    cuts = [-np.inf, *inside, *outside]  # a cut at a score refuses it: no number in between is needed
    pairs = [(np.mean(inside > cut), np.mean(outside > cut)) for cut in cuts]
    assert found.auroc == pytest.approx(wins)
    assert found.detection_error == pytest.approx(min(0.5 * (1 - kept) + 0.5 * passed for kept, passed in pairs))
    assert found.fpr_at_95_tpr == pytest.approx(min(passed for kept, passed in pairs if kept >= 0.95 - 1e-12))
    lost = min(1 - kept for kept, passed in pairs if 1 - passed >= 0.95 - 1e-12)
    assert found.fpr_at_95_tpr_out_positive == pytest.approx(lost)
    assert found.aupr_in == pytest.approx(average_precision(inside, outside))
    assert found.aupr_out == pytest.approx(average_precision(-outside, -inside))


def average_precision(positive, negative):
    """Σ (R_k − R_k−1)·P_k down the distinct scores, counted one by one."""
    total, recall = 0.0, 0.0
    for cut in sorted({*positive, *negative}, reverse=True):
        found, false = np.sum(positive >= cut), np.sum(negative >= cut)
        total += (found / len(positive) - recall) * found / (found + false)
        recall = found / len(positive)
    return total


@given(accept=scores, refuse=scores)
def test_all_metrics_equal_scikit_learn(accept, refuse):
    """The same from scikit-learn's ROC curve and average precision, ties included."""
    found = detection_metrics(accept, refuse)
    labels, values = np.repeat([1, 0], [len(accept), len(refuse)]), np.asarray(accept + refuse, float)
    passed, kept, _ = roc_curve(labels, values, drop_intermediate=False)
    lost, caught, _ = roc_curve(1 - labels, -values, drop_intermediate=False)
    assert found.auroc == pytest.approx(roc_auc_score(labels, values))
    assert found.detection_error == pytest.approx(np.min(0.5 * (1 - kept) + 0.5 * passed))
    assert found.fpr_at_95_tpr == pytest.approx(passed[kept >= 0.95 - 1e-12][0])
    assert found.fpr_at_95_tpr_out_positive == pytest.approx(lost[caught >= 0.95 - 1e-12][0])
    assert found.aupr_in == pytest.approx(average_precision_score(labels, values))
    assert found.aupr_out == pytest.approx(average_precision_score(1 - labels, -values))


def test_constant_scores_tell_nothing():
    """One value for all: AUROC and detection error are a half, every image passes or none, AUPR is the share."""
    assert detection_metrics([3.0] * 6, [3.0] * 2) == DetectionMetrics(1.0, 1.0, 0.5, 0.5, 0.75, 0.25)


def test_one_sample_on_each_side():
    """A single pair is separated completely, or in the wrong order."""
    assert detection_metrics([1.0], [0.0]) == DetectionMetrics(0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
    assert detection_metrics([0.0], [1.0]) == DetectionMetrics(1.0, 1.0, 0.5, 0.0, 0.5, 0.5)


def test_order_does_not_matter():
    """Scores full of ties give the same numbers, bit for bit, in any order."""
    random = np.random.default_rng(0)
    accept, refuse = random.integers(0, 5, 200), random.integers(-2, 3, 300)
    before = detection_metrics(accept, refuse)
    assert detection_metrics(random.permutation(accept), random.permutation(refuse)) == before


@given(values=any_scores)
def test_cuts_separate_what_they_are_between(values):
    """Also between neighbouring or huge floats every cut refuses the lower score and accepts the higher one."""
    distinct = np.unique(values)
    cuts = thresholds_between(distinct)
    assert cuts[0] < distinct[0]
    assert cuts[-1] >= distinct[-1]
    assert np.all(cuts[1:-1] >= distinct[:-1])
    assert np.all(cuts[1:-1] < distinct[1:])


def test_the_two_polarities_differ():
    """Keeping 19 of 20 in-distribution scores lets half the OOD ones pass; catching these loses two of the 20."""
    inside, outside = [*range(1, 20), -5], [-1] * 10 + [1] * 10
    assert fpr_at_tpr(inside, outside) == pytest.approx(0.5)
    assert fpr_at_tpr_out_positive(inside, outside) == pytest.approx(2 / 20)


def test_bootstrap_interval_covers_as_often_as_it_says():
    """Of 200 samples of 60 normal scores each, about 95 % of the intervals of the mean hold the true mean."""
    random = np.random.default_rng(0)
    held = 0
    for seed in range(200):
        low, high = bootstrap_interval(np.mean, random.normal(3, 1, 60), n=200, seed=seed)
        held += low <= 3 <= high
    assert 180 <= held <= 199


def test_bootstrap_repeats_itself():
    """The same seed gives the same interval, another seed another one; unusable samples are errors."""
    values = np.arange(50.0)
    first = bootstrap_interval(auroc, values, values - 20, n=50)
    assert first == bootstrap_interval(auroc, values, values - 20, n=50)
    assert first != bootstrap_interval(auroc, values, values - 20, n=50, seed=1)
    assert first[0] < auroc(values, values - 20) < first[1]
    for samples, options in (((), {}), (([],), {}), (([1],), {"level": 1.0})):
        with pytest.raises(ValueError, match="expected"):
            bootstrap_interval(np.mean, *samples, **options)


@settings(max_examples=examples(25))
@given(accept=scores | any_scores, refuse=scores | any_scores)
@example(accept=[1e308, -1e308], refuse=[1e308])  # neighbours whose difference is no float
def test_intervals_from_counts_equal_those_of_every_metric_by_itself(accept, refuse):
    """All six at once, from running sums of how often each score was drawn: what resampling the scores gives."""
    found = detection_intervals(accept, refuse, n=10, seed=3)
    assert list(found) == [field.name for field in fields(DetectionMetrics)]
    low, high = resampled_interval(
        lambda a, r: np.asarray(astuple(detection_metrics(a, r))), sorted(accept), sorted(refuse), n=10, seed=3
    )
    assert np.asarray(list(found.values())) == pytest.approx(np.stack([low, high], axis=1), abs=1e-12)
    alone = bootstrap_interval(auroc, sorted(accept), sorted(refuse), n=10, seed=3)
    assert found["auroc"] == pytest.approx(alone, abs=1e-12)


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


@pytest.mark.parametrize("bad", [[], [float("nan")], [float("inf")], [1.0, float("-inf")]])
def test_unusable_scores_are_refused(bad):
    """No scores, NaN and infinity are errors, not numbers."""
    with pytest.raises(ValueError, match="expected"):
        auroc(bad, [0.0])
    with pytest.raises(ValueError, match="expected"):
        detection_error([0.0], bad)
    with pytest.raises(ValueError, match="expected"):
        detection_metrics([0.0], bad)
