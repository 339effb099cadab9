"""Pair policy `risk` keeps its promise over repeated draws of calibration images, or refuses."""

from contextlib import suppress
from unittest.mock import patch

import numpy as np
import pytest
from scipy.stats import binom

from training.calibration import pair_policies
from training.calibration.pair_policies import PATH, PairScores, accepted_by, refusals, risk_pair, risk_path
from training.errors import DataError

ALPHA, DRAWS, IMAGES = 0.1, 400, 600
LUCK = 3 * np.sqrt(ALPHA * (1 - ALPHA) / DRAWS)  # three standard errors of a share of DRAWS


class FlatRisk:
    """Both scores know nothing, and 10 % of answers are wrong whatever is refused: every promise of 9.9 % is broken."""

    risk = 0.099

    def wrong(self, familiarity, _):
        return np.full(len(familiarity), 0.1)

    def true_risk(self, _):
        return 0.1


class RiskOfBoth:
    """Scores on 0…1; an answer is wrong with probability 0.3·(1 − f)² + 0.3·(1 − c)², of known mean above (a, b)."""

    risk = 0.1

    def wrong(self, familiarity, certainty):
        return 0.3 * (1 - familiarity) ** 2 + 0.3 * (1 - certainty) ** 2

    def true_risk(self, pair):
        a, b = (0.0 if threshold is None else threshold for threshold in (pair.familiarity, pair.certainty))
        return 0.1 * (1 - a) ** 2 + 0.1 * (1 - b) ** 2


def draw(model, random):
    familiarity, certainty = random.random((2, IMAGES))
    right = random.random(IMAGES) >= model.wrong(familiarity, certainty)
    scores = PairScores(familiarity, certainty, right)
    order = np.random.default_rng(int(random.integers(2**32))).permutation(len(scores))
    return scores.take(order[: len(scores) // 2]), scores.take(order[len(scores) // 2 :])


def loosest_passing(path, scores, risk):
    """What `risk_pair` does not do: look at every pair, and take the loosest that passes."""
    accepted = np.array([accepted_by(pair, scores) for pair in path])
    passes = binom.cdf((accepted & ~scores.right).sum(axis=1), accepted.sum(axis=1), risk) <= ALPHA
    return path[np.flatnonzero(passes)[-1]] if passes.any() else None


@pytest.mark.parametrize("model", [FlatRisk(), RiskOfBoth()], ids=["flat", "both"])
def test_promise_is_broken_in_at_most_a_share_alpha_of_draws(model):
    """Over 400 draws the fixed sequence breaks it as seldom as promised; the same half, or any pair, breaks it more."""
    random = np.random.default_rng(0)
    found = {"fixed sequence": [], "any that passes": [], "on the same half": []}
    for _ in range(DRAWS):
        half_a, half_b = draw(model, random)
        path = risk_path(half_a, None)
        # Making the path takes most of the time; a DataError promises nothing.
        with patch.object(pair_policies, "risk_path", return_value=path), suppress(DataError):
            found["fixed sequence"].append(risk_pair(half_a, half_b, model.risk, ALPHA))
        found["any that passes"].append(loosest_passing(path, half_b, model.risk))
        found["on the same half"].append(loosest_passing(path, half_a, model.risk))
    broken = {
        way: sum(pair is not None and model.true_risk(pair) > model.risk for pair in pairs) / DRAWS
        for way, pairs in found.items()
    }
    assert broken["fixed sequence"] <= ALPHA + LUCK
    assert broken["any that passes"] > broken["fixed sequence"] + 0.03
    assert broken["on the same half"] > ALPHA + LUCK
    if isinstance(model, FlatRisk):
        assert broken["any that passes"] > ALPHA + LUCK
    else:
        assert len(found["fixed sequence"]) > DRAWS / 4  # it is of use, too


def test_path_goes_from_strict_to_loose():
    """Without ties each pair refuses exactly its share of half A, and the last accepts all."""
    half_a, _ = draw(RiskOfBoth(), np.random.default_rng(1))
    refused = [int((~accepted_by(pair, half_a)).sum()) for pair in risk_path(half_a, None)]
    assert refused == [int(share * 300) for share in PATH]
    assert refused == sorted(refused, reverse=True)
    assert refused[-1] == 0


def test_what_is_promised_is_what_was_counted():
    """The text of the policy has the accepted and the wrong images of half B, and their exact test passes."""
    random = np.random.default_rng(2)
    half_a, half_b = draw(RiskOfBoth(), random)
    pair = risk_pair(half_a, half_b, 0.15, 0.05)
    unfamiliar, unsure = refusals(pair, half_b)
    accepted = ~(unfamiliar | unsure)
    wrong = int((accepted & ~half_b.right).sum())
    assert f"({wrong} of {accepted.sum()} accepted ones of 300 were" in pair.how
    assert binom.cdf(wrong, accepted.sum(), 0.15) <= 0.05


def test_a_model_without_mistakes_accepts_all():
    """Where nothing is wrong, the loosest pair passes: nothing is refused."""
    scores = PairScores(np.arange(200.0), np.arange(200.0), np.ones(200, bool))
    pair = risk_pair(scores, scores, 0.02)
    assert (pair.familiarity, pair.certainty) == (None, None)


def test_too_few_images_are_refused_with_how_many_it_takes():
    """Fifty images without a single mistake cannot promise 2 %: the error says so, and what would."""
    half = PairScores(np.arange(50.0), np.arange(50.0), np.ones(50, bool))
    with pytest.raises(DataError, match=r"50 calibration images to test on.*at least 149 accepted images"):
        risk_pair(half, half, 0.02, 0.05)
    for risk, alpha in ((0.0, 0.05), (1.0, 0.05), (0.02, 0.0)):
        with pytest.raises(DataError, match="expected both between 0 and 1"):
            risk_pair(half, half, risk, alpha)
    with pytest.raises(DataError, match="Use labelled calibration images"):
        risk_pair(half, PairScores(half.familiarity, half.certainty), 0.02)
