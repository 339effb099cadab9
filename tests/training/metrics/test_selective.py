"""Selective prediction, against brute force over every order of ties, and hand-worked values."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.metrics.selective import aurc, expected_calibration_error


def columns(pairs):
    return np.asarray([score for score, _ in pairs], float), np.asarray([right for _, right in pairs])


def test_aurc_by_hand():
    """Right, wrong, right from the highest score on: risks 0, 1/2 and 1/3, of which the mean is 5/18."""
    assert aurc([3, 2, 1], [True, False, True]) == pytest.approx(5 / 18)


@given(pairs=st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_aurc_is_the_mean_over_every_order_of_equal_scores(pairs):
    """Ties are taken as if broken at random: the average over all orders that the scores allow."""
    areas = []
    for order in permutations(pairs):
        if all(a[0] >= b[0] for a, b in pairwise(order)):
            wrong = np.cumsum([not right for _, right in order])
            areas.append(np.mean(wrong / np.arange(1, len(order) + 1)))
    assert aurc(*columns(pairs)) == pytest.approx(np.mean(areas))


@given(
    pairs=st.lists(st.tuples(st.integers(0, 30).map(lambda k: k / 30), st.booleans()), min_size=1, max_size=40),
    bins=st.integers(1, 20),
)
def test_calibration_error_is_the_sum_over_bins(pairs, bins):
    """Bin by bin, with the upper edge inside, as a loop counts it."""
    probability, right = columns(pairs)
    expected = 0.0
    for b in range(bins):
        inside = (probability > b / bins) & (probability <= (b + 1) / bins)
        if b == 0:
            inside |= probability == 0
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - probability[inside].mean())
    assert expected_calibration_error(probability, right, bins) == pytest.approx(expected, abs=1e-12)


def test_order_constant_scores_and_one_sample():
    """Nothing depends on the order; a constant score has the plain error as its area; one answer has its own."""
    random = np.random.default_rng(0)
    score, right = random.integers(0, 4, 300).astype(float), random.random(300) < 0.8
    shuffled = random.permutation(300)
    assert aurc(score, right) == aurc(score[shuffled], right[shuffled])
    assert aurc(np.zeros(300), right) == pytest.approx(1 - right.mean())
    assert aurc([1.0], [False]) == 1.0
    assert aurc([1.0], [True]) == 0.0


@pytest.mark.parametrize(
    ("score", "right"),
    [
        ([], []),
        ([float("nan")], [True]),
        ([float("inf")], [True]),
        ([float("-inf"), 0.0], [True, True]),
        ([1.0, 2.0], [True]),
        ([1.0], [2]),
    ],
)
def test_unusable_answers_are_refused(score, right):
    """No scores, NaN, infinities, a missing or a strange answer are errors, not numbers."""
    for metric in (aurc, expected_calibration_error):
        with pytest.raises(ValueError, match=r"expected|other values"):
            metric(score, right)


def test_impossible_questions_are_refused():
    """A probability above 1 and no bins are refused."""
    for ask in (
        lambda: expected_calibration_error([1.2], [True]),
        lambda: expected_calibration_error([0.2], [True], bins=0),
    ):
        with pytest.raises(ValueError, match="expected"):
            ask()
