"""A gate on mixed traffic, against brute force, an identity of the paper, and values worked out by hand."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.metrics.detection import auroc
from training.metrics.mixed_traffic import augrc, mixed_augrc, risk_coverage, wrong_among_accepted

SHARES = st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.9])


def columns(rows, *types):
    return tuple(np.asarray(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True))


def test_wrong_among_accepted_by_hand():
    """Three of four own images accepted, one of them wrong, and one of two OOD images: (0.2 + 0.1) / (0.6 + 0.1)."""
    found = wrong_among_accepted([True, True, True, False], [True, True, False, True], [True, False])
    assert found == pytest.approx(0.3 / 0.7)
    assert wrong_among_accepted([True, False], [False, True], [True], 0.0) == 1.0
    assert wrong_among_accepted([False, False], [False, True], [False]) is None


@given(
    own=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8),
    ood=st.lists(st.booleans(), min_size=1, max_size=8),
)
def test_traffic_made_of_copies_has_the_same_risk(own, ood):
    """Weights stand for copies: with 4·M copies of each own and N copies of each OOD image, plain counting agrees."""
    accepted, right = columns(own, bool, bool)
    copies = [(a, r) for a, r in own for _ in range(4 * len(ood))] + [(a, False) for a in ood for _ in range(len(own))]
    passed = [r for a, r in copies if a]
    expected = None if not passed else pytest.approx(1 - np.mean(passed))
    assert wrong_among_accepted(accepted, right, ood, 0.2) == expected


@given(rows=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 4)), min_size=1, max_size=5))
def test_augrc_is_the_mean_over_every_order_of_equal_scores(rows):
    """The trapezoid under the curve, drawn one image after the other, averaged over all orders the scores allow."""
    areas = []
    for order in permutations(rows):
        if all(a[0] >= b[0] for a, b in pairwise(order)):
            weight = np.array([row[2] for row in order], float)
            coverage = np.concatenate([[0], np.cumsum(weight)]) / weight.sum()
            joint = np.concatenate([[0], np.cumsum(weight * [row[1] for row in order])]) / weight.sum()
            areas.append(np.sum(np.diff(coverage) * (joint[1:] + joint[:-1]) / 2))
    assert augrc(*columns(rows, float, bool, float)) == pytest.approx(np.mean(areas))


@given(rows=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2, max_size=40))
def test_augrc_follows_from_auroc_and_accuracy(rows):
    """Traub et al. (2024): AUGRC = (1 − AUROC) · acc · (1 − acc) + ½ · (1 − acc)²."""
    score, wrong = columns(rows, float, bool)
    accuracy = 1 - wrong.mean()
    area = auroc(score[~wrong], score[wrong]) if 0 < accuracy < 1 else 0.0
    expected = (1 - area) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    assert augrc(score, wrong) == pytest.approx(expected)


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=15),
    ood=st.lists(st.integers(0, 5), min_size=1, max_size=15),
    share=SHARES,
)
def test_curve_is_what_each_gate_does_and_its_area_is_augrc(rows, ood, share):
    """Every point is the gate just below a score, and the trapezoid under coverage · risk is AUGRC."""
    score, right = columns(rows, float, bool)
    foreign = np.asarray(ood, float)
    curve = risk_coverage(score, right, foreign, share)
    points = []
    for value in sorted({*score, *foreign}, reverse=True):
        risk = wrong_among_accepted(score >= value, right, foreign >= value, share)
        if risk is not None:
            points.append(((1 - share) * np.mean(score >= value) + share * np.mean(foreign >= value), risk))
    assert np.column_stack(curve) == pytest.approx(np.array(points))
    coverage, joint = (np.concatenate([[0], part]) for part in (curve.coverage, curve.coverage * curve.risk))
    area = np.sum(np.diff(coverage) * (joint[1:] + joint[:-1]) / 2)
    assert mixed_augrc(score, right, foreign, share) == pytest.approx(area)


def test_weights_count_as_copies_and_their_unit_does_not_matter():
    """A weight of 3 is three images, and huge weights give what small ones do."""
    score, wrong, weights = np.array([3.0, 2, 2, 1]), np.array([False, True, False, True]), np.array([1, 3, 2, 1])
    copied = augrc(np.repeat(score, weights), np.repeat(wrong, weights))
    assert augrc(score, wrong, weights) == pytest.approx(copied)
    assert augrc(score, wrong, weights * 5e307) == pytest.approx(copied)


@pytest.mark.parametrize("bad", [[], [float("nan")], [float("inf")], [float("-inf")]])
def test_unusable_scores_are_refused(bad):
    """No scores, NaN and infinities are errors, not numbers."""
    for ask in (
        lambda: augrc(bad, [True] * len(bad)),
        lambda: mixed_augrc(bad, [True] * len(bad), [1.0]),
        lambda: mixed_augrc([1.0], [True], bad),
        lambda: risk_coverage([1.0], [True], bad),
    ):
        with pytest.raises(ValueError, match="expected"):
            ask()


@pytest.mark.parametrize(
    "ask",
    [
        lambda: augrc([1.0, 2.0], [True]),
        lambda: augrc([1.0], [2]),
        lambda: augrc([1.0], [True], [0.0]),
        lambda: augrc([1.0], [True], [-1.0]),
        lambda: augrc([1.0], [True], [float("nan")]),
        lambda: augrc([1.0], [True], [1.0, 1.0]),
        lambda: wrong_among_accepted([True], [True, False], [True]),
        lambda: wrong_among_accepted([True], [True], []),
        lambda: wrong_among_accepted([], [], [True]),
        lambda: wrong_among_accepted([True], [True], [True], 1.0),
        lambda: wrong_among_accepted([True], [True], [True], -0.1),
        lambda: wrong_among_accepted([True], [True], [float("nan")]),
    ],
)
def test_impossible_questions_are_refused(ask):
    """Missing or strange answers, weights and shares are errors, not numbers."""
    with pytest.raises(ValueError, match=r"expected|other values"):
        ask()
