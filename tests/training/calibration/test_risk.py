"""Policy `risk` keeps its promise over repeated draws of calibration images, or refuses."""

import numpy as np
import pytest

from training.calibration.risk import threshold_for_risk
from training.errors import DataError
from training.metrics.detection import thresholds_between
from training.metrics.intervals import upper_bound

RISK, ALPHA, DRAWS, IMAGES = 0.1, 0.2, 400, 300


def draw(random):
    """Scores on 0…1 where an answer at s is wrong with probability 0.3·(1 − s): the risk above δ is 0.15·(1 − δ)."""
    scores = random.random(IMAGES)
    return scores, random.random(IMAGES) >= 0.3 * (1 - scores)


def true_risk(threshold):
    return 0.15 * (1 - np.clip(threshold, 0, 1))


def test_promise_is_broken_in_at_most_a_share_alpha_of_draws():
    """Over 400 draws the true error above the chosen δ exceeds r at most as often as promised, and δ is of use."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        try:
            found.append(threshold_for_risk(*draw(random), RISK, ALPHA).threshold)
        except DataError:
            found.append(1.0)  # refused: nothing was promised
    assert np.mean([true_risk(threshold) > RISK for threshold in found]) <= ALPHA
    assert np.mean([threshold < 1 for threshold in found]) > 0.5


def test_promise_holds_where_no_threshold_keeps_it():
    """Where the score knows nothing and one answer in ten is wrong whatever δ, 9 % is promised in few draws."""
    random = np.random.default_rng(1)
    broken = 0
    for _ in range(DRAWS):
        try:
            threshold_for_risk(random.random(IMAGES), random.random(IMAGES) >= 0.1, 0.09, ALPHA)
            broken += 1
        except DataError:
            pass
    assert broken / DRAWS <= ALPHA


def test_looking_at_every_threshold_would_break_it():
    """The simulation can tell: the best of all thresholds by an uncorrected bound breaks the promise too often."""
    random = np.random.default_rng(1)
    table = np.array([[upper_bound(k, n, ALPHA) if k <= n else 1.0 for k in range(13)] for n in range(1, IMAGES + 1)])
    broken = 0
    for _ in range(DRAWS):
        scores, right = random.random(IMAGES), random.random(IMAGES) >= 0.1
        mistakes = np.cumsum(~right[np.argsort(-scores)])
        few = mistakes < 13
        broken += bool((table[np.flatnonzero(few), mistakes[few]] <= 0.09).any())
    assert broken / DRAWS > ALPHA


def test_too_few_images_are_refused_with_how_many_it_takes():
    """Fifty images without a single mistake cannot promise 2 %: the error says so, and what would."""
    with pytest.raises(DataError, match=r"on 50 calibration images.*at least 237 accepted images without a mistake"):
        threshold_for_risk(np.arange(50.0), np.ones(50, bool), 0.02, 0.05)
    for risk, alpha in ((0.0, 0.05), (1.0, 0.05), (0.02, 0.0)):
        with pytest.raises(DataError, match="expected both between 0 and 1"):
            threshold_for_risk(np.arange(50.0), np.ones(50, bool), risk, alpha)


def test_what_is_promised_is_what_was_counted():
    """The bound, the accepted and the wrong images are those above δ; equal scores fall on one side together."""
    random = np.random.default_rng(2)
    scores = random.integers(0, 12, 2_000).astype(float)
    right = random.random(2_000) > 0.2 * np.exp(-scores / 3)
    promise = threshold_for_risk(scores, right, 0.05, 0.05)
    above = scores > promise.threshold
    assert (promise.accepted, promise.wrong) == (above.sum(), (~right[above]).sum())
    assert promise.bound == upper_bound(promise.wrong, promise.accepted, 0.05 / 11) <= 0.05
    assert promise.threshold in thresholds_between(np.unique(scores))
