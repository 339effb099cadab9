"""A branch that is fitted alone: doubt where the classifier errs, the budget, and what is learnt by heart."""

from dataclasses import replace

import numpy as np
import pytest

from training.graphs.branch import Branch
from training.learning.branch_fit import BranchSettings, FittedBranch, Rows, fit_branch
from training.metrics.detection import auroc

SETTINGS = BranchSettings(hidden=(16,), steps=120, batch=200, learning_rate=0.3)


def rows_of(count: int, seed: int, wrong_above: float = 0.7, width: int = 6) -> Rows:
    """The classifier errs where the first value is above a bound; half of those rows are hard views."""
    random = np.random.default_rng(seed)
    inputs = random.normal(0, 1, (count, width)).astype(np.float16)
    labels = random.integers(0, 3, count)
    wrong = inputs[:, 0] > wrong_above
    answer = np.where(wrong, (labels + 1) % 3, labels)
    logits = (6 * np.eye(3)[answer]).astype(np.float32)
    return Rows(inputs, logits, labels, np.arange(count) // 2, wrong & (np.arange(count) % 2 == 0))


def confidence(fitted: FittedBranch, rows: Rows) -> np.ndarray:
    width = rows.inputs.shape[1]
    branch = Branch(np.zeros(width, np.float32), np.ones(width, np.float32), fitted.layers, "relu")
    return branch.confidence_logit(rows.inputs)


def test_it_doubts_where_the_classifier_errs() -> None:
    """On rows that it has not seen, nearly every right answer has a higher confidence than every wrong one."""
    fitted = fit_branch(rows_of(6_000, seed=0), SETTINGS)
    new = rows_of(2_000, seed=1)
    c = confidence(fitted, new)
    wrong = new.logits.argmax(1) != new.labels
    assert auroc(c[~wrong], c[wrong]) > 0.98
    assert not fitted.learnt_by_heart


@pytest.mark.parametrize("budget", [0.1, 0.5])
def test_the_budget_is_spent_on_ordinary_images(budget: float) -> None:
    """The mean of -log c over ordinary rows comes near it, by the layers as they are kept; hard rows do not count."""
    rows = rows_of(6_000, seed=0)
    fitted = fit_branch(rows, replace(SETTINGS, budget=budget, steps=400))
    z = confidence(fitted, rows)[~rows.is_hard]
    assert np.logaddexp(0, -z).mean() == pytest.approx(budget, rel=0.4)


def test_what_would_be_learnt_by_heart_is_not_kept() -> None:
    """Mistakes at random cannot be told on other images: of a wide branch, the round before it learns them is kept."""
    random = np.random.default_rng(0)
    rows = rows_of(400, seed=0, width=300)
    answer = np.where(random.random(400) < 0.4, (rows.labels + 1) % 3, rows.labels)
    at_random = replace(rows, logits=(6 * np.eye(3)[answer]).astype(np.float32), is_hard=np.zeros(400, np.bool_))
    settings = replace(SETTINGS, hidden=(256,), steps=200, batch=400, budget=0.3, learning_rate=0.3)
    fitted = fit_branch(at_random, settings)
    c = confidence(fitted, at_random)
    wrong = answer != rows.labels
    assert fitted.kept_round < fitted.rounds
    assert auroc(c[~wrong], c[wrong]) < 0.9  # the last round tells 99 % of them


def test_the_same_seed_gives_the_same_branch() -> None:
    """Its layers are equal, and those of another seed are not."""
    rows = rows_of(1_000, seed=0)
    short = replace(SETTINGS, steps=5)
    first, again, other = (fit_branch(rows, replace(short, seed=seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.layers[0][0], again.layers[0][0])
    assert not np.array_equal(first.layers[0][0], other.layers[0][0])
