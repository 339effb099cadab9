"""Fits a confidence branch to what the layers of a classifier show, with the paper's loss, budget and hints.

The classifier is not here: its logits are given, and stay as they are. A tenth of the images is held out. The branch of
the round that does best on those is kept, and what it learnt by heart shows there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from training.learning.loss import BudgetController, confidence_loss
from training.networks.branch import ACTIVATIONS

HELD_OUT = 0.1  # of the images
AT_ONCE = 10_000  # rows, where nothing is learnt from them
MOMENTUM, LARGEST_GRADIENT = 0.9, 1.0
PEAK_AT = 0.15  # of all steps: the rate goes up in a straight line until there, and down to zero
# How much larger the loss on held-out images may be before the branch is said to have learnt images by heart.
BY_HEART = 1.5


@dataclass(frozen=True)
class BranchSettings:
    """How a branch is fitted. `budget` is the mean of −log c on ordinary images, as in the paper."""

    hidden: tuple[int, ...] = (512, 256, 128)
    activation: Literal["relu", "gelu"] = "relu"
    budget: float = 0.1
    hint_probability: float = 0.5
    steps: int = 150  # at least, in whole rounds over all rows: more cost OOD images what they gain for own mistakes
    batch: int = 1_000
    learning_rate: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Rows:
    """R views of images: what the branch reads of each, scaled, and how the classifier answers."""

    inputs: NDArray[np.float16]  # [R,W], perhaps on disk
    logits: NDArray[np.float32]  # [R,K]
    labels: NDArray[np.int64]  # [R]
    image: NDArray[np.int64]  # [R]: all views of an image are held out, or none
    is_hard: NDArray[np.bool_]  # [R]: these do not count for the budget


@dataclass(frozen=True)
class FittedBranch:
    """Its layers, each a weight [in, out] and a bias [out], and how the fit went."""

    layers: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]
    kept_round: int  # from 1
    rounds: int
    loss: float  # on images it learnt from
    held_out_loss: float  # on the others, with the same λ
    mean_confidence: float  # of ordinary held-out images

    @property
    def learnt_by_heart(self) -> bool:
        return self.held_out_loss > BY_HEART * self.loss


def fit_branch(rows: Rows, settings: BranchSettings) -> FittedBranch:
    """The branch of the round with the least loss on held-out images."""
    torch.manual_seed(settings.seed)
    held_out, learnt_from = _divided(rows.image, settings.seed)
    branch = _layers(rows.inputs.shape[1], settings.hidden, ACTIVATIONS[settings.activation])
    after_rounds, weight = _learn(branch, rows, learnt_from, settings)
    losses = []
    for state in after_rounds:
        branch.load_state_dict(state)
        losses.append(_loss(branch, rows, held_out, weight))
    kept = int(np.argmin(losses))
    branch.load_state_dict(after_rounds[kept])
    ordinary = held_out[~rows.is_hard[held_out]]
    return FittedBranch(
        layers=tuple(
            (layer.weight.detach().T.contiguous().numpy(), layer.bias.detach().numpy())
            for layer in branch
            if isinstance(layer, nn.Linear)
        ),
        kept_round=kept + 1,
        rounds=len(after_rounds),
        loss=_loss(branch, rows, learnt_from[: len(held_out)], weight),
        held_out_loss=losses[kept],
        mean_confidence=float(torch.sigmoid(_logits_of(branch, rows, ordinary)).mean()),
    )


def _learn(
    branch: nn.Sequential, rows: Rows, learnt_from: NDArray[np.int64], settings: BranchSettings
) -> tuple[list[dict[str, Tensor]], float]:
    """The weights after each round, and λ at the end."""
    generator = torch.Generator().manual_seed(settings.seed)
    a_round = -(-len(learnt_from) // settings.batch)
    rounds = -(-settings.steps // a_round)
    steps = rounds * a_round
    optimiser = torch.optim.SGD(branch.parameters(), settings.learning_rate, MOMENTUM)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step / steps))
    controller = BudgetController(settings.budget, 0.1, steps)
    after_rounds = []
    for _ in range(rounds):
        for batch in _shuffled(learnt_from, settings.batch, generator):
            x, logits, labels = _tensors(rows, batch)
            hinted = torch.rand(len(batch), generator=generator) < settings.hint_probability
            z = branch(x).squeeze(1)
            optimiser.zero_grad(set_to_none=True)
            confidence_loss(logits, z, labels, hinted, controller.weight).total.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(branch.parameters(), LARGEST_GRADIENT)
            optimiser.step()
            schedule.step()
            ordinary = torch.from_numpy(~rows.is_hard[batch])
            if ordinary.any():
                controller.update(-F.logsigmoid(z.detach()[ordinary]).mean().item())
        after_rounds.append({name: value.clone() for name, value in branch.state_dict().items()})
    return after_rounds, controller.weight


def _rate(progress: float) -> float:
    return progress / PEAK_AT if progress < PEAK_AT else max(0.0, 1 - progress) / (1 - PEAK_AT)


def _divided(image: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows that are held out, and the others, both in random order."""
    rng = np.random.default_rng(seed)
    images = rng.permutation(np.unique(image))
    held = np.isin(image, images[: max(1, round(HELD_OUT * len(images)))])
    order = rng.permutation(len(image))
    return order[held[order]], order[~held[order]]


def _layers(width: int, hidden: tuple[int, ...], activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for out in hidden:
        layers += [nn.Linear(width, out), activation()]
        width = out
    return nn.Sequential(*layers, nn.Linear(width, 1))


def _shuffled(rows: NDArray[np.int64], batch: int, generator: torch.Generator) -> Iterator[NDArray[np.int64]]:
    order = rows[torch.randperm(len(rows), generator=generator).numpy()]
    # Sorted within a batch: rows may lie on disk.
    return (np.sort(order[start : start + batch]) for start in range(0, len(order), batch))


def _tensors(rows: Rows, which: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.from_numpy(np.asarray(rows.inputs[which], np.float32)),
        torch.from_numpy(rows.logits[which]),
        torch.from_numpy(rows.labels[which]),
    )


@torch.no_grad()
def _loss(branch: nn.Sequential, rows: Rows, which: NDArray[np.int64], weight: float) -> float:
    """The paper's loss where every image may ask for hints."""
    total = 0.0
    for start in range(0, len(which), AT_ONCE):
        x, logits, labels = _tensors(rows, which[start : start + AT_ONCE])
        loss = confidence_loss(logits, branch(x).squeeze(1), labels, torch.ones(len(x), dtype=torch.bool), weight)
        total += loss.total.item() * len(x)
    return total / len(which)


@torch.no_grad()
def _logits_of(branch: nn.Sequential, rows: Rows, which: NDArray[np.int64]) -> Tensor:
    parts = [which[start : start + AT_ONCE] for start in range(0, len(which), AT_ONCE)]
    return torch.cat([branch(_tensors(rows, part)[0]).squeeze(1) for part in parts])
