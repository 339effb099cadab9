"""The optimiser a recipe asks for, and the moving average of the weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from training.networks import Classifier
from training.networks.stages import stages_of
from training.recipe import Optimiser

# Odd polynomial a·s + b·s³ + c·s⁵ that takes every singular value in (0, 1] towards 1 within five rounds (K. Jordan,
# "Muon", 2024): the steep start matters more than landing exactly on 1.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_ROUNDS = 5
ADAM_BETA2 = 0.999


def average_of(network: Classifier, decay: float) -> AveragedModel | None:
    """A moving average of weights and batch-norm statistics, where the recipe asks for one."""
    if decay == 0:
        return None
    update = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return AveragedModel(network, multi_avg_fn=update, use_buffers=True)


def make_optimiser(network: Classifier, settings: Optimiser) -> torch.optim.Optimizer:
    """Nesterov SGD or AdamW. One-dimensional parameters are decayed only if the recipe says so, and those of the body
    may have their own rate, as may each stage of the body. With `filter_rate` its filters take orthogonal steps.

    The offsets of batch norms take a far higher rate than weights; the few of the head and the branch do not.
    """
    scales = _rate_scales(network, settings.layer_decay)
    groups: list[dict[str, Any]] = []
    for scale in sorted({1.0, *scales.values()}, reverse=True):
        alike = [p for p in network.parameters() if p.requires_grad and scales.get(id(p), 1.0) == scale]
        groups += _groups(network, alike, settings, scale)
    if settings.kind == "adamw":
        return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(settings.momentum, ADAM_BETA2))
    common: dict[str, Any] = {"lr": settings.learning_rate, "momentum": settings.momentum}
    common["nesterov"] = settings.momentum > 0
    return (OrthogonalSGD if settings.filter_rate else torch.optim.SGD)(groups, **common)


def _rate_scales(network: Classifier, decay: float) -> dict[int, float]:
    """By the parameter's id, what its rate is multiplied by; the head and the branch learn at the full rate."""
    if decay == 1:
        return {}
    stages = stages_of(network.body)
    return {id(p): decay ** (len(stages) - depth) for depth, stage in enumerate(stages) for p in stage}


def _groups(
    network: Classifier, trained: list[nn.Parameter], settings: Optimiser, scale: float
) -> list[dict[str, Any]]:
    """The parameters of one scale by kind, each kind with its rate and decay."""
    of_body = {id(p) for p in network.body.parameters()}
    filters = [p for p in trained if p.ndim == 4 and id(p) in of_body] if settings.filter_rate else []
    of_filters = {id(p) for p in filters}
    weights = [p for p in trained if p.ndim > 1 and id(p) not in of_filters]
    body_offsets = [p for p in trained if p.ndim <= 1 and id(p) in of_body]
    other_offsets = [p for p in trained if p.ndim <= 1 and id(p) not in of_body]
    rate = settings.learning_rate * scale
    offset_decay = settings.weight_decay if settings.decay_offsets else 0.0
    groups = [
        {"params": weights, "full_rate": rate, "weight_decay": settings.weight_decay},
        {"params": body_offsets, "full_rate": rate * settings.offset_rate_scale, "weight_decay": offset_decay},
        {"params": other_offsets, "full_rate": rate, "weight_decay": offset_decay},
    ]
    if filters:
        groups.append({"params": filters, "full_rate": settings.filter_rate * scale, "orthogonal": True})
    return groups


class OrthogonalSGD(torch.optim.SGD):
    """SGD whose `orthogonal` groups step along the nearest orthogonal matrix of their momentum (Muon).

    Each filter bank is one matrix, output channels by the rest. All its directions then move equally far, rare ones
    included; training/LOG.md shows the gain. Before each step the bank is rescaled to the norm √(output channels): the
    batch norm behind it cancels its scale, but a growing scale would shrink the steps.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        assert closure is None, "the training loop computes the loss itself"
        orthogonal = [group for group in self.param_groups if group.get("orthogonal")]
        gradients = [parameter.grad for group in orthogonal for parameter in group["params"]]
        for group in orthogonal:
            for parameter in group["params"]:
                self._step_orthogonally(parameter, group)
                parameter.grad = None  # SGD's own step skips parameters without a gradient
        super().step()
        for parameter, gradient in zip((p for g in orthogonal for p in g["params"]), gradients, strict=True):
            parameter.grad = gradient
        return None

    def _step_orthogonally(self, filters: Tensor, group: dict[str, Any]) -> None:
        gradient = filters.grad
        if gradient is None:
            return
        state = self.state[filters]
        momentum = state.setdefault("momentum_buffer", torch.zeros_like(gradient))
        momentum.mul_(group["momentum"]).add_(gradient)
        direction = gradient.add(momentum, alpha=group["momentum"]) if group["nesterov"] else momentum
        filters.mul_(len(filters) ** 0.5 / filters.norm())
        filters.add_(orthogonal_like(direction.flatten(1)).view_as(filters), alpha=-group["lr"])


def orthogonal_like(matrix: Tensor) -> Tensor:
    """U·Vᵀ of the matrix's singular value decomposition, roughly: singular values end between about 0.7 and 1.2."""
    a, b, c = NEWTON_SCHULZ
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x: Tensor = wide / (wide.norm() + 1e-7)
    for _ in range(NEWTON_SCHULZ_ROUNDS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T
