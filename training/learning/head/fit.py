"""A linear head on features that stay as they are: multinomial logistic regression with an L2 penalty.

The loss is convex, so L-BFGS finds its minimum, and neither a seed nor a schedule matters. How strong the penalty is,
is chosen by the loss on the validation images: from the strongest on, each fit starts where the last one ended.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Of the squared weights, for features whose mean variance is 1.
PENALTIES = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
ENOUGH_WORSE = 2  # weaker penalties are not tried after so many that were worse than the best
MOST_ITERATIONS, SMALLEST_GRADIENT, SMALLEST_CHANGE = 100, 1e-5, 1e-7
SMALLEST_SCALE = 1e-6


@dataclass(frozen=True)
class Fitted:
    """The head for one penalty, and how it does."""

    penalty: float
    weight: Tensor  # [K,D], for the features as they are
    bias: Tensor  # [K]
    train_accuracy: float
    validation_accuracy: float
    validation_loss: float


@dataclass(frozen=True)
class Examples:
    """Features [N,D] and labels [N]."""

    features: Tensor
    labels: Tensor


def fitted_heads(train: Examples, validation: Examples, class_weights: Tensor) -> Iterator[Fitted]:
    """One after the other, until weaker penalties no longer help; the one with the smallest loss is the best."""
    centre = train.features.mean(0)
    # One scale for all features: a feature that hardly varies must not weigh as much as one that does.
    scale = train.features.var(0).mean().sqrt().clamp(min=SMALLEST_SCALE)
    weight = torch.zeros(len(class_weights), train.features.shape[1])
    bias = torch.zeros(len(class_weights))
    best, worse = float("inf"), 0
    scaled = Examples((train.features - centre) / scale, train.labels)
    for penalty in PENALTIES:
        weight, bias = minimum(scaled, class_weights[train.labels], penalty, weight, bias)
        found = _measured(penalty, weight / scale, bias - weight @ centre / scale, train, validation)
        yield found
        if found.validation_loss < best:
            best, worse = found.validation_loss, 0
        else:
            worse += 1
        if worse == ENOUGH_WORSE:
            return


def minimum(
    train: Examples, image_weights: Tensor, penalty: float, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Where the loss is smallest, looked for from these weights on."""
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=MOST_ITERATIONS,
        tolerance_grad=SMALLEST_GRADIENT,
        tolerance_change=SMALLEST_CHANGE,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        each = F.cross_entropy(train.features @ weight.T + bias, train.labels, reduction="none")
        total = (image_weights * each).mean() + penalty / 2 * weight.square().sum()
        total.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return total

    optimiser.step(loss)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return weight.detach(), bias.detach()


def _measured(penalty: float, weight: Tensor, bias: Tensor, train: Examples, validation: Examples) -> Fitted:
    logits = validation.features @ weight.T + bias
    return Fitted(
        penalty=penalty,
        weight=weight,
        bias=bias,
        train_accuracy=_accuracy(train.features @ weight.T + bias, train.labels),
        validation_accuracy=_accuracy(logits, validation.labels),
        validation_loss=F.cross_entropy(logits, validation.labels).item(),
    )


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return int((logits.argmax(1) == labels).sum()) / len(labels)
