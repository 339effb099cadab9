"""The paper's first experiment: what a confidence branch learns on XOR (arXiv:1802.04865, section 4.1 and appendix).

    confgate-train xor --out runs/xor

500 points in four squares, coloured like a chessboard; noise displaces the points and keeps their colour, so that the
classes mix along the borders. Networks for many budgets β and noise levels are trained side by side as one stack of
weights.

Result (four seeds at β = 0.3, the whole grid for one seed): c is low along the borders at every budget and noise.
Its lower bound (1st percentile over the map) rises from each noise to the next for β up to 0.3; with a larger budget it
is near 0 without noise and at 10 %, and rises from there. A larger budget lowers it, as the paper says.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from training.learning.loss import BudgetController, confidence_loss
from training.networks import Classifier, add_confidence_branch, mlp

BUDGETS = (0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
NOISES = (0.0, 0.1, 0.2, 0.3)
SAMPLES, BATCH, EPOCHS = 500, 10, 30
BRANCH_HIDDEN = (100,)
HINT_PROBABILITY = 0.5
# The paper says "SGD" and no more; with these the networks learn XOR in 30 epochs, at every noise.
LEARNING_RATE, MOMENTUM = 0.03, 0.9
INITIAL_WEIGHT = 0.1
RULE: Literal["sign"] = "sign"  # λ moves by 1 % a step, as in the authors' code


@dataclass(frozen=True)
class Setting:
    """One network of the figure. The seed decides its initial weights and its points before they are displaced."""

    budget: float
    noise: float
    seed: int = 0


@dataclass(frozen=True)
class TrainedStack:
    """The trained networks, with the points each was trained on ([M,N,2] and [M,N])."""

    settings: tuple[Setting, ...]
    points: Tensor
    labels: Tensor
    shape: Classifier
    weights: dict[str, Tensor]

    @torch.no_grad()
    def outputs(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [M,P,2] and confidence [M,P] of every network at every one of P points [P,2]."""
        logits, z = vmap(lambda weights: tuple(functional_call(self.shape, weights, (points,))))(self.weights)
        return logits, torch.sigmoid(z)


def xor_points(noise: float, seed: int, samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """Points [N,2] and classes [N]: uniform in (−1, 1)², class 1 where x·y > 0, then displaced.

    The displacement is Gaussian; its deviation is `noise` times the side of one of the four squares.
    """
    generator = torch.Generator().manual_seed(seed)
    clean = torch.rand(samples, 2, generator=generator) * 2 - 1
    labels = (clean[:, 0] * clean[:, 1] > 0).long()
    return clean + noise * torch.randn(samples, 2, generator=generator), labels


def train_stack(settings: Sequence[Setting], on_epoch: Callable[[], None] = lambda: None) -> TrainedStack:
    """Trains one network for each setting; a network's result does not depend on which others are in the stack."""
    data = [xor_points(setting.noise, setting.seed) for setting in settings]
    points, labels = torch.stack([x for x, _ in data]), torch.stack([y for _, y in data])
    networks = [_fresh_network(setting.seed) for setting in settings]
    weights, _ = stack_module_state(networks)
    optimiser = torch.optim.SGD(weights.values(), lr=LEARNING_RATE, momentum=MOMENTUM)
    steps = EPOCHS * SAMPLES // BATCH
    controllers = [BudgetController(setting.budget, INITIAL_WEIGHT, steps, RULE) for setting in settings]
    generators = [torch.Generator().manual_seed(setting.seed) for setting in settings]

    def losses(own: dict[str, Tensor], x: Tensor, y: Tensor, hinted: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        logits, z = functional_call(networks[0], own, (x,))
        parts = confidence_loss(logits, z, y, hinted, weight)
        return parts.total, parts.confidence

    rows = torch.arange(len(settings))[:, None]
    for _ in range(EPOCHS):
        order = torch.stack([torch.randperm(SAMPLES, generator=generator) for generator in generators])
        hints = torch.stack([torch.rand(SAMPLES, generator=generator) for generator in generators]) < HINT_PROBABILITY
        for chosen, hinted in zip(torch.split(order, BATCH, dim=1), torch.split(hints, BATCH, dim=1), strict=True):
            lambdas = torch.tensor([controller.weight for controller in controllers])
            total, l_c = vmap(losses)(weights, points[rows, chosen], labels[rows, chosen], hinted, lambdas)
            optimiser.zero_grad()
            # One sum is enough: no network's loss depends on another's weights.
            total.sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimiser.step()
            for controller, value in zip(controllers, l_c.tolist(), strict=True):
                controller.update(value)
        on_epoch()
    return TrainedStack(tuple(settings), points, labels, networks[0], {k: w.detach() for k, w in weights.items()})


def _fresh_network(seed: int) -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return add_confidence_branch(mlp(inputs=2, classes=2), BRANCH_HIDDEN)


def square_grid(side: int, reach: float) -> Tensor:
    """side² points [P,2], row by row from the bottom, that cover (−reach, reach)²."""
    axis = torch.linspace(-reach, reach, side)
    return torch.cartesian_prod(axis, axis).flip(1)
