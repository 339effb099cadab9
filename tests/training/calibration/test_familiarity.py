"""Familiarity: ranks among correctly classified images, each image left out of its own comparison."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.model.scores import Floats, ScoreName, sigmoid
from training.calibration.familiarity import LESS, learn_familiarity, weights_by, witnesses_of
from training.calibration.halves import FEWEST_TO_SPLIT, halves_of


def _scores(n: int, seed: int = 0) -> dict[ScoreName, Floats]:
    random = np.random.default_rng(seed)
    return {"confidence": random.normal(size=n), "energy": random.normal(size=n), "neighbours": random.normal(size=n)}


def test_p_values_of_the_reference_are_uniform() -> None:
    """Among the images that familiarity was learnt from, a share p has a p-value of at most p."""
    scores = _scores(1_000)
    p = sigmoid(learn_familiarity(scores, np.arange(1_000)).own)
    for share in (0.01, 0.05, 0.5, 0.9):
        assert np.mean(p <= share) == pytest.approx(share, abs=0.002)


def test_other_images_get_uniform_p_values_too() -> None:
    """Images drawn like the reference, but not in it, have p-values that are as small as often as they say."""
    scores = _scores(20_000, seed=1)
    p = sigmoid(learn_familiarity(scores, np.arange(2_000)).own[2_000:])
    for share in (0.01, 0.05, 0.5):
        assert np.mean(p <= share) == pytest.approx(share, abs=0.25 * share)


def test_an_image_is_ranked_among_the_others_alone() -> None:
    """With one witness the p-value is (others at or below + ½) / n, worked out by hand."""
    values = np.array([3.0, 1.0, 2.0, 2.0])
    p = sigmoid(learn_familiarity({"energy": values}, np.arange(4)).own)
    # Ranks 3.5/4, 0.5/4, 2.5/4, 2.5/4; their ranks among each other are the same.
    assert p == pytest.approx([3.5 / 4, 0.5 / 4, 2.5 / 4, 2.5 / 4])


def test_the_bundle_answers_as_calibration_does() -> None:
    """An image outside the reference gets the same score from the bundle's own code."""
    scores = _scores(500, seed=2)
    learnt = learn_familiarity(scores, np.arange(300))
    assert np.array_equal(learnt.own[300:], learnt.typicality.reference.log_odds(scores)[300:])  # type: ignore[arg-type]


def test_a_weight_makes_a_witness_count_less() -> None:
    """An image that only `neighbours` finds unusual is less unusual than one that only `energy` does."""
    scores = _scores(1_000, seed=3)
    for name in scores:
        scores[name][0] = scores[name][1] = 0.0
    scores["neighbours"][0] = scores["energy"][1] = -1.9
    learnt = learn_familiarity(scores, np.arange(2, 1_000), {"neighbours": 0.2})
    assert learnt.typicality.weights == {"confidence": 1.0, "energy": 1.0, "neighbours": 0.2}
    assert learnt.own[0] > learnt.own[1]


def test_a_witness_that_is_alone_needs_no_weight() -> None:
    """Only beside others can a witness count less."""
    alone = learn_familiarity({"neighbours": np.arange(30.0)}, np.arange(30), {"neighbours": 0.2})
    assert alone.typicality.weights is None


@pytest.mark.parametrize(("shift", "weights"), [(1.0, {"neighbours": LESS}), (2.0, {"neighbours": LESS}), (3.0, {})])
def test_neighbours_count_fully_where_they_are_the_best_witness(shift: float, weights: dict[str, float]) -> None:
    """OOD proxies that lie lower in neighbours than in any other witness give them the full weight."""
    own, proxies = _scores(1_000, seed=4), _scores(400, seed=5)
    for name, by in (("confidence", 1.5), ("energy", 2.0), ("neighbours", shift)):
        proxies[name] = np.sort(own[name])[:400] - by
    assert weights_by(own, proxies) == weights
    assert weights_by({"neighbours": own["neighbours"]}, {"neighbours": proxies["neighbours"]}) == {}


@given(st.integers(20, 60), st.integers(1, 3))
def test_ties_and_constant_scores_are_finite(n: int, distinct: int) -> None:
    """Scores with few distinct values, or one, give finite scores that tie where all witnesses tie."""
    values = (np.arange(n) % distinct).astype(np.float64)
    own = learn_familiarity({"energy": values, "confidence": np.zeros(n)}, np.arange(n)).own
    assert np.isfinite(own).all()
    assert len(np.unique(own)) <= distinct


def test_witnesses_are_those_that_the_graphs_offer() -> None:
    """A plain classifier has no confidence; scores that are no witnesses are left out."""
    assert witnesses_of(("max_softmax", "energy", "neighbours", "certainty")) == ("energy", "neighbours")


@given(st.integers(1, 3_000))
def test_halves_are_disjoint_and_complete(n: int) -> None:
    """Every calibration image is in exactly one half; few images are not split."""
    halves = halves_of(n)
    assert sorted([*halves.a, *halves.b]) == list(range(n))
    assert len(halves.b) == (0 if n < FEWEST_TO_SPLIT else n // 2)
