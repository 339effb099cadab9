"""The confidence loss and the budget, against hand-worked values and a float64 transcription of the equations."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties import examples
from training.learning.loss import BudgetController, confidence_loss


def transcription(logits, z, labels, hinted, weight):
    """Equations 1–5 of the paper as they stand, in probability space and float64."""
    p = torch.softmax(logits, dim=1)
    c = torch.sigmoid(z)
    y = torch.nn.functional.one_hot(labels, logits.shape[1]).to(p)
    adjusted = torch.where(hinted[:, None], c[:, None] * p + (1 - c[:, None]) * y, p)
    task = -(torch.log(adjusted) * y).sum(1).mean()
    confidence = -torch.log(c).mean()
    return task + weight * confidence, task, confidence


def test_one_sample_by_hand():
    """p_y = 1/4, c = 1/2, hinted: p' = 5/8, so L_t = ln 1.6, L_c = ln 2, L = L_t + 0.1·L_c."""
    logits = torch.log(torch.tensor([[0.25, 0.75]]))
    parts = confidence_loss(logits, torch.zeros(1), torch.tensor([0]), torch.tensor([True]), 0.1)
    assert parts.task.item() == pytest.approx(math.log(1.6), abs=1e-6)
    assert parts.confidence.item() == pytest.approx(math.log(2), abs=1e-6)
    assert parts.total.item() == pytest.approx(math.log(1.6) + 0.1 * math.log(2), abs=1e-6)


def test_without_hint_it_is_cross_entropy_and_still_pays_for_doubt():
    """A sample that gets no hint pays plain cross-entropy, and its confidence is penalised all the same."""
    logits = torch.log(torch.tensor([[0.25, 0.75]]))
    parts = confidence_loss(logits, torch.zeros(1), torch.tensor([0]), torch.tensor([False]), 0.1)
    assert parts.task.item() == pytest.approx(math.log(4), abs=1e-6)
    assert parts.confidence.item() == pytest.approx(math.log(2), abs=1e-6)


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 10_000), batch=st.integers(1, 9), classes=st.integers(2, 6), weight=st.floats(0, 5))
def test_equals_the_paper_in_float64(seed, batch, classes, weight):
    """Values and gradients agree with the paper's equations in float64."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, classes, generator=g) * 4
    z = torch.randn(batch, generator=g) * 4
    labels = torch.randint(classes, (batch,), generator=g)
    hinted = torch.rand(batch, generator=g) < 0.5
    ours_in = [logits.clone().requires_grad_(), z.clone().requires_grad_()]
    theirs_in = [logits.double().requires_grad_(), z.double().requires_grad_()]
    ours = confidence_loss(*ours_in, labels, hinted, weight)
    total, task, confidence = transcription(*theirs_in, labels, hinted, weight)
    for got, expected in ((ours.total, total), (ours.task, task), (ours.confidence, confidence)):
        assert got.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    ours.total.backward()
    total.backward()
    for got, expected in zip(ours_in, theirs_in, strict=True):
        torch.testing.assert_close(got.grad.double(), expected.grad, rtol=1e-4, atol=1e-5)


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 10_000), weight=st.floats(0, 5))
def test_hints_for_the_branch_leave_the_classifier_alone(seed, weight):
    """With them the logits' gradient is that of cross-entropy, and the confidence's is that of the paper's loss."""
    g = torch.Generator().manual_seed(seed)
    logits, z = torch.randn(8, 5, generator=g, dtype=torch.float64) * 4, torch.randn(8, generator=g) * 4
    labels, hinted = torch.randint(5, (8,), generator=g), torch.rand(8, generator=g) < 0.5
    ours, plain = ([logits.clone().requires_grad_(), z.double().requires_grad_()] for _ in range(2))
    confidence_loss(*ours, labels, hinted, weight, hints_for="branch").total.backward()
    transcription(*plain, labels, hinted, weight)[0].backward()
    torch.testing.assert_close(ours[1].grad, plain[1].grad, rtol=1e-4, atol=1e-6)
    cross_entropy = logits.clone().requires_grad_()
    torch.nn.functional.cross_entropy(cross_entropy, labels).backward()
    torch.testing.assert_close(ours[0].grad, cross_entropy.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("z", [-200.0, 200.0])
@pytest.mark.parametrize("hint", [True, False])
def test_finite_at_the_extremes(z, hint):
    """Loss and gradients stay finite at |z| = 200 and logits of ±200, with no clamp."""
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    confidence_logit = torch.tensor([z], requires_grad=True)
    parts = confidence_loss(logits, confidence_logit, torch.tensor([1]), torch.tensor([hint]), 0.1)
    parts.total.backward()
    assert torch.isfinite(parts.total)
    assert torch.isfinite(logits.grad).all()
    assert torch.isfinite(confidence_logit.grad).all()


def test_published_rule_moves_one_percent():
    """Rule "sign": λ/0.99 above the budget, λ/1.01 below it, unchanged on it."""
    controller = BudgetController(0.3, 0.1, 1000, rule="sign")
    controller.update(0.4)
    assert controller.weight == pytest.approx(0.1 / 0.99)
    controller.update(0.2)
    assert controller.weight == pytest.approx(0.1 / 0.99 / 1.01)
    controller.update(0.3)
    assert controller.weight == pytest.approx(0.1 / 0.99 / 1.01)


def test_proportional_rule_does_not_depend_on_the_number_of_steps():
    """The same L_c over half of training moves λ equally far in a run of 1,000 and of 10,000 steps."""
    reached = []
    for steps in (1_000, 10_000):
        controller = BudgetController(0.3, 0.1, steps, speed=20)
        for _ in range(steps // 2):
            controller.update(0.36)
        reached.append(controller.weight)
    assert reached[0] == pytest.approx(reached[1], rel=1e-6)
    assert reached[0] == pytest.approx(0.1 * math.exp(10 * 0.2), rel=1e-6)


def test_lambda_stays_within_bounds():
    """A run whose L_c never meets the budget keeps a finite λ."""
    controller = BudgetController(0.3, 0.1, 10)
    for _ in range(10_000):
        controller.update(50.0)
    assert controller.weight == BudgetController.HIGHEST
