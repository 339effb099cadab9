"""Mixup (arXiv:1710.09412) and CutMix (arXiv:1905.04899): each image is blended with the next one of its batch, or gets
a rectangle of it, and learns both labels in these shares. The order of a batch is random, and so is who comes next.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.recipe import Augmentation


@dataclass(frozen=True)
class Mixed:
    """Images [B,C,H,W], and how much of each is its own."""

    images: Tensor
    own: float


def mix(images: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Mixed:
    """One batch; where a recipe has both ways, each batch takes one of them."""
    ways = [(way, alpha) for way, alpha in ((_mixup, augmentation.mixup), (_cutmix, augmentation.cutmix)) if alpha > 0]
    if not ways:
        return Mixed(images, 1.0)
    random = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
    way, alpha = ways[int(random.integers(len(ways)))]
    return way(images, random.beta(alpha, alpha), random)


def next_of(batch: Tensor) -> Tensor:
    """For each image or label the one after it."""
    return batch.roll(-1, 0)


def _mixup(images: Tensor, own: float, _random: np.random.Generator) -> Mixed:
    return Mixed(own * images + (1 - own) * next_of(images), own)


def _cutmix(images: Tensor, own: float, random: np.random.Generator) -> Mixed:
    """The rectangle has the proportions of the image; what falls outside the image does not count."""
    height, width = images.shape[2:]
    (top, bottom), (left, right) = (_span(length, (1 - own) ** 0.5, random) for length in (height, width))
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = next_of(images)[:, :, top:bottom, left:right]
    return Mixed(mixed, 1 - (bottom - top) * (right - left) / (height * width))


def _span(length: int, share: float, random: np.random.Generator) -> tuple[int, int]:
    """Around a point anywhere in the image."""
    middle, half = random.integers(length), round(length * share) // 2
    return max(0, int(middle) - half), min(length, int(middle) + half)
