"""Pairs of thresholds: what they refuse, and that a balanced one stays within its budget and spends it well."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.calibration.halves import halves_of
from training.calibration.pair_policies import (
    Pair,
    PairScores,
    accept_all_pair,
    accepted_by,
    as_often,
    balanced_pair,
    foreign_only_pair,
    is_worse_than_accepting_all,
    ood_holdout_pair,
    refusals,
    wrong_among_accepted_by,
)
from training.calibration.pairs import make_pairs
from training.calibration.policies import USUAL
from training.errors import DataError
from training.metrics.intervals import upper_bound


def made(random, n, levels, labelled=True):
    """Scores of `levels` distinct values, so that many are equal."""
    familiarity, certainty = random.integers(0, levels, (2, n)).astype(float)
    right = random.random(n) < 0.5 + 0.5 * certainty / levels
    return PairScores(familiarity, certainty, right if labelled else None)


def test_refusals_by_hand():
    """Unfamiliar comes first; a score at its threshold is refused; None refuses nothing."""
    scores = PairScores(np.array([0.0, 1, 2, 3]), np.array([0.0, 9, 1, 9]))
    for pair, unfamiliar, unsure in (
        (Pair(1.0, 1.0, ""), [1, 1, 0, 0], [0, 0, 1, 0]),
        (Pair(None, 1.0, ""), [0, 0, 0, 0], [1, 0, 1, 0]),
        (Pair(1.0, None, ""), [1, 1, 0, 0], [0, 0, 0, 0]),
        (accept_all_pair(), [0, 0, 0, 0], [0, 0, 0, 0]),
    ):
        found = refusals(pair, scores)
        assert [part.astype(int).tolist() for part in found] == [unfamiliar, unsure]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 250),
    levels=st.sampled_from([1, 2, 5, 40, 10_000]),
    limit=st.sampled_from([0.02, 0.1, 0.5]),
    alpha=st.sampled_from([0.05, 0.2]),
    labelled=st.booleans(),
)
def test_balanced_pair_never_refuses_above_its_bound(seed, n, levels, limit, alpha, labelled):
    """With ties, constant scores and few images too, the bound of joint refusals is at most the limit, or none is."""
    random = np.random.default_rng(seed)
    calibration, proxies = made(random, n, levels, labelled), made(random, 30, levels, False)
    pair = balanced_pair(calibration, proxies, None, limit, alpha)
    refused = int((~accepted_by(pair, calibration)).sum())
    if upper_bound(refused, n, alpha) > limit:
        assert (pair.familiarity, pair.certainty, refused) == (None, None, 0)
        assert "refuses nothing" in pair.how
    for threshold, values in ((pair.familiarity, calibration.familiarity), (pair.certainty, calibration.certainty)):
        assert threshold is None or values.min() <= threshold < values.max()
    if levels == 1:
        assert refused == 0


@pytest.mark.parametrize(("n", "told"), [(5, "even none refused of 5"), (30, "a single one refused of 30")])
def test_too_few_images_refuse_nothing_and_say_so(n, told):
    """Of 5 images none refused promises at most 45 %, of 30 one refused 15 %: a limit of 10 % leaves no threshold."""
    calibration = made(np.random.default_rng(0), n, 1_000)
    pair = balanced_pair(calibration, calibration)
    assert (pair.familiarity, pair.certainty) == (None, None)
    assert told in pair.how
    assert "it takes at least 46 calibration images" in pair.how


@pytest.mark.parametrize(("n", "default"), [(12, "balanced"), (28, "foreign_only"), (60, "balanced")])
def test_a_gate_of_few_images_asks_for_familiarity_at_least(n, default):
    """Where `balanced` can refuse none, the default keeps 95 % by familiarity, with a note; 12 images allow none."""
    own, proxies = made(np.random.default_rng(1), n, 1_000), PairScores(np.full(40, -9.0), np.full(40, 9.0))
    found = make_pairs(own, halves_of(n), proxies, {}, USUAL)
    assert found.default.policy == default
    assert any("the default is 'foreign_only'" in note for note in found.notes) == (default == "foreign_only")
    assert (found.pairs.policies[default].familiarity is None) == (n == 12)


def test_enough_images_refuse_some():
    """The number that too few images are told is enough, and one less is not."""
    for n, some in ((45, False), (46, True)):
        calibration = made(np.random.default_rng(0), n, 1_000)
        pair = balanced_pair(calibration, calibration)
        assert bool((~accepted_by(pair, calibration)).any()) == some


def test_budget_goes_to_the_half_that_finds_what_is_wrong():
    """Mistakes that are unsure take it for certainty, OOD proxies that are unfamiliar take it for familiarity."""
    random = np.random.default_rng(0)
    familiarity, certainty = random.random((2, 1_000))
    mistaken_unsure = PairScores(familiarity, certainty, certainty > 0.02)
    certain_proxies = PairScores(np.full(200, 2.0), np.full(200, 2.0))
    pair = balanced_pair(mistaken_unsure, certain_proxies)
    assert wrong_among_accepted_by(pair, mistaken_unsure, None) == 0  # each of the 2 % that are wrong is refused
    unfamiliar_proxies = PairScores(random.random(200) * 0.08, certainty[:200])
    pair = balanced_pair(PairScores(familiarity, certainty), unfamiliar_proxies)
    assert not accepted_by(pair, unfamiliar_proxies).any()
    assert "OOD proxies alone count as wrong" in pair.how


@pytest.mark.parametrize(("n", "least"), [(100, 4), (307, 15), (5_000, 250)])
def test_familiarity_gets_the_usual_threshold_at_least(n, least):
    """Whatever the proxies say, it refuses 5 % of own images: all of a budget that is smaller."""
    random = np.random.default_rng(0)
    familiarity, certainty = random.random((2, n))
    own = PairScores(familiarity, certainty, certainty > 0.1)
    easy = PairScores(np.full(50, -9.0), np.full(50, 9.0))  # any threshold catches them
    assert int(refusals(balanced_pair(own, easy, own.take(np.arange(n // 2))), own).unfamiliar.sum()) == least


def test_ood_images_that_are_given_count_as_much_as_proxies():
    """A set that only a high threshold on familiarity catches raises it, whether it has 20 images or 2,000."""
    random = np.random.default_rng(0)
    familiarity, certainty = random.random((2, 1_000))
    own = PairScores(familiarity, certainty, certainty > 0.02)
    proxies = PairScores(np.full(200, -9.0), np.full(200, 9.0))
    alone = balanced_pair(own, proxies)
    assert alone.familiarity < 0.07
    for n in (20, 2_000):
        near = PairScores(np.full(n, 0.07), np.full(n, 9.0))
        both = as_often(proxies, {"near": near})
        assert len(both) == 400
        assert (both.familiarity == 0.07).sum() == 200
        assert balanced_pair(own, both).familiarity >= 0.07


def test_balanced_pair_is_the_best_division_of_all():
    """No other pair that refuses as many, 5 % by familiarity, leaves clearly fewer wrong answers (by brute force)."""
    random = np.random.default_rng(3)
    calibration, proxies = made(random, 300, 1_000), made(random, 100, 600, False)
    found = balanced_pair(calibration, proxies)
    allowed = int((~accepted_by(found, calibration)).sum())
    best = min(
        wrong_among_accepted_by(pair, calibration, proxies)
        for a in np.quantile(calibration.familiarity, np.linspace(0.05, 0.1, 31))
        for b in np.quantile(calibration.certainty, np.linspace(0, 0.1, 31))
        if (~accepted_by(pair := Pair(a, b, ""), calibration)).sum() <= allowed
    )
    assert wrong_among_accepted_by(found, calibration, proxies) <= best + 0.003


def test_wrong_among_accepted_by_hand():
    """80 % own images, one of two accepted and wrong, and 20 % proxies, one of four accepted: 0.45 / 0.45."""
    own = PairScores(np.array([0.0, 2]), np.array([5.0, 5]), np.array([True, False]))
    proxies = PairScores(np.array([0.0, 0, 0, 2]), np.full(4, 5.0))
    pair = Pair(1.0, None, "")
    assert wrong_among_accepted_by(pair, own, proxies) == 1.0
    assert wrong_among_accepted_by(accept_all_pair(), own, proxies) == pytest.approx(0.4 + 0.2)
    assert is_worse_than_accepting_all(pair, own, proxies)
    assert not is_worse_than_accepting_all(accept_all_pair(), own, proxies)
    assert is_worse_than_accepting_all(Pair(9.0, None, ""), own, proxies)  # accepts nothing
    unlabelled = PairScores(own.familiarity, own.certainty)
    assert wrong_among_accepted_by(pair, unlabelled, proxies) == pytest.approx(0.05 / 0.45)


def test_familiarity_alone():
    """One pair keeps 95 %, one separates the user's OOD images; where no threshold can, none is set."""
    own = PairScores(np.arange(100.0), np.zeros(100))
    assert (foreign_only_pair(own).familiarity, foreign_only_pair(own).certainty) == (4.5, None)
    foreign = PairScores(np.array([-9.0, -8, -7]), np.zeros(3))
    pair = ood_holdout_pair(own, {"kitchen": foreign, "garden": foreign})
    assert (pair.familiarity, pair.certainty) == (-3.5, None)
    assert "100 calibration images and images of kitchen (3), garden (3)" in pair.how
    constant = PairScores(np.zeros(100), np.zeros(100))
    assert foreign_only_pair(constant).familiarity is None
    assert "none is refused" in foreign_only_pair(constant).how
    assert ood_holdout_pair(constant, {"same": constant}).familiarity is None


def test_unusable_scores_and_questions_are_refused():
    """NaN, infinities, missing scores, and shares outside 0 to 1 are errors that say what was expected."""
    one = np.zeros(1)
    for parts in ((np.zeros(0), np.zeros(0)), (one, np.zeros(2)), (one, one, np.ones(2, bool)), (one, one + np.nan)):
        with pytest.raises(ValueError, match="expected"):
            PairScores(*parts)
    own = PairScores(one, one)
    for ask in (
        lambda: balanced_pair(own, own, limit=0),
        lambda: balanced_pair(own, own, alpha=1),
        lambda: foreign_only_pair(own, 1.0),
        lambda: ood_holdout_pair(own, {}),
    ):
        with pytest.raises(DataError, match=r"expected|Name a set"):
            ask()
