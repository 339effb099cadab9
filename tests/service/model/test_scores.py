"""The gate's arithmetic against values worked out by hand or in higher precision."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.model.scores import (
    HISTOGRAM_EDGES,
    accept,
    histogram,
    log_odds_of_max,
    log_sum_exp,
    score_images,
    shown,
    sigmoid,
    softmax,
)


def test_softmax_is_the_textbook_formula() -> None:
    """Two classes with logits 1 and 0 have probabilities e/(1+e) and 1/(1+e); temperature divides the logits."""
    assert softmax([[1.0, 0.0]])[0] == pytest.approx([math.e / (1 + math.e), 1 / (1 + math.e)], rel=1e-15)
    assert softmax([[2.0, 0.0]], temperature=2.0)[0] == pytest.approx(softmax([[1.0, 0.0]])[0], rel=1e-15)


def test_softmax_survives_huge_logits() -> None:
    """Logits that overflow exp still give probabilities that add up to one."""
    assert softmax([[1e4, 0.0, -1e4]])[0].tolist() == [1.0, 0.0, 0.0]


def test_sigmoid_is_exact_at_both_ends() -> None:
    """No overflow at ±1000, a half at zero, and mirrored about it."""
    assert sigmoid([-1000.0, 0.0, 1000.0]).tolist() == [0.0, 0.5, 1.0]
    assert sigmoid(3.0) + sigmoid(-3.0) == pytest.approx(1.0, rel=1e-15)
    assert sigmoid(-30.0) == pytest.approx(math.exp(-30) / (1 + math.exp(-30)), rel=1e-14)


@given(st.floats())
def test_sigmoid_is_its_formula_to_the_last_bit(score: float) -> None:
    """Of any number, infinities and NaN among them, it is what the side of its sign computes, in numpy's own exp."""
    small = float(np.exp(-abs(score)))
    expected = (1.0 if score >= 0 else small) / (1.0 + small)
    assert sigmoid([score, -score])[0] == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def test_log_odds_are_those_of_the_largest_softmax() -> None:
    """Where the softmax does not saturate, the score is log(p / (1 - p)) of the largest p."""
    logits = np.random.default_rng(0).normal(0, 2, (50, 7))
    largest = softmax(logits).max(axis=1)
    assert log_odds_of_max(logits) == pytest.approx(np.log(largest / (1 - largest)), rel=1e-9)
    assert sigmoid(log_odds_of_max(logits)) == pytest.approx(largest, rel=1e-12)


def test_log_odds_do_not_tie_where_softmax_does() -> None:
    """Two inputs whose largest softmax is exactly 1 in float64 still have different scores."""
    logits = np.array([[40.0, 0.0, 0.0], [50.0, 0.0, 0.0]])
    assert softmax(logits).max(axis=1).tolist() == [1.0, 1.0]
    assert log_odds_of_max(logits).tolist() == pytest.approx([40 - math.log(2), 50 - math.log(2)], rel=1e-15)


def test_only_a_higher_score_is_accepted() -> None:
    """A score that equals its threshold is refused."""
    assert accept(0.5, 0.4)
    assert not accept(0.5, 0.5)
    assert not accept(0.4, 0.5)
    assert not accept(float("nan"), 0.5)


def test_scores_come_from_their_own_outputs() -> None:
    """Each score reads the output that the contract gives it, in float64."""
    outputs = {
        "logits": np.array([[2.0, 0.0]], np.float32),
        "logits_preprocessed": np.array([[6.0, 0.0]], np.float32),
        "confidence_logit": np.array([20.5], np.float32),
        "confidence_logit_preprocessed": np.array([21.5], np.float32),
    }
    assert score_images("confidence", outputs).tolist() == [20.5]
    assert score_images("confidence_preprocessed", outputs).tolist() == [21.5]
    assert score_images("max_softmax", outputs).tolist() == [2.0]
    assert score_images("odin", outputs, 3.0).tolist() == [2.0]
    assert score_images("confidence", outputs).dtype == np.float64


def test_energy_and_largest_logit_by_hand() -> None:
    """Energy is log Σ exp of the logits, also where exp overflows; max_logit is the largest of them."""
    logits = np.array([[1.0, 2.0, 3.0], [1000.0, 1000.0, -1000.0]], np.float32)
    expected = [math.log(math.exp(1) + math.exp(2) + math.exp(3)), 1000 + math.log(2)]
    assert log_sum_exp(logits) == pytest.approx(expected, rel=1e-12)
    assert score_images("energy", {"logits": logits}).tolist() == log_sum_exp(logits).tolist()
    assert score_images("max_logit", {"logits": logits}).tolist() == [3.0, 1000.0]


def test_relative_scores_are_shown_about_their_median() -> None:
    """Energies of 10 to 20, whose plain sigmoids are all 1, are told apart in what is shown and in the histogram."""
    energies = np.array([10.0, 15.0, 20.0])
    scale = 5 / math.log(3)  # quartiles at 10 and 20
    assert shown(energies, 15.0, scale) == pytest.approx([0.25, 0.5, 0.75], rel=1e-12)
    assert np.count_nonzero(histogram(energies, 15.0, scale)) == 3
    assert np.count_nonzero(histogram(energies)) == 2


def test_histogram_counts_as_prometheus_does() -> None:
    """A value on an edge belongs to the bucket below it, the last edge takes everything, nothing is lost."""
    exactly_half = 0.0
    counts = histogram([exactly_half, np.nextafter(0.0, 1.0) * 2**1000, 1000.0, -1000.0])
    assert len(counts) == len(HISTOGRAM_EDGES)
    assert counts[HISTOGRAM_EDGES.index(0.5)] == 2
    assert counts[-1] == 1
    assert counts[0] == 1
    assert sum(counts) == 4


def test_edges_rise_to_one() -> None:
    """The edges are strictly rising, lie in (0, 1], and end at 1, so that every sigmoid has its bucket."""
    edges = [Fraction(edge) for edge in HISTOGRAM_EDGES]
    assert all(low < high for low, high in zip([Fraction(0), *edges], edges, strict=False))
    assert edges[-1] == 1
