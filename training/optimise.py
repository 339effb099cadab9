"""The optimiser a recipe asks for, and the moving average of the weights."""

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from training.networks import Classifier
from training.recipe import Optimiser


def average_of(network: Classifier, decay: float) -> AveragedModel | None:
    """A moving average of weights and batch-norm statistics, where the recipe asks for one."""
    if decay == 0:
        return None
    return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)


def make_optimiser(network: Classifier, settings: Optimiser) -> torch.optim.SGD:
    """Nesterov SGD; one-dimensional parameters are decayed only where the recipe says so, and the body's may have
    a rate of their own.

    The offsets of batch norms take a far higher rate than weights; the few of the head and the branch do not.
    """
    of_body = {id(p) for p in network.body.parameters()}
    trained = [p for p in network.parameters() if p.requires_grad]
    weights = [p for p in trained if p.ndim > 1]
    body_offsets = [p for p in trained if p.ndim <= 1 and id(p) in of_body]
    other_offsets = [p for p in trained if p.ndim <= 1 and id(p) not in of_body]
    rate = settings.learning_rate
    offset_decay = settings.weight_decay if settings.decay_offsets else 0.0
    groups = [
        {"params": weights, "full_rate": rate, "weight_decay": settings.weight_decay},
        {"params": body_offsets, "full_rate": rate * settings.offset_rate_scale, "weight_decay": offset_decay},
        {"params": other_offsets, "full_rate": rate, "weight_decay": offset_decay},
    ]
    return torch.optim.SGD(groups, lr=rate, momentum=settings.momentum, nesterov=settings.momentum > 0)
