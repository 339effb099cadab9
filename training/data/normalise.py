"""Normalisation, and the mean and standard deviation of each channel (on the 0…1 scale) that it needs."""

import numpy as np
import torch
from torch import Tensor

from service.model.scores import Floats
from training.data.folder import FolderImages
from training.data.splits import Images, Splits
from training.recipe import Data

# Mean and std of the photos that torchvision's pretrained weights were trained on.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def normalisation_for(data: Data, splits: Splits) -> tuple[Tensor, Tensor]:
    """Mean and std: measured on the training images only, or those that pretrained weights expect."""
    if data.normalisation == "weights":
        assert data.mean is not None  # the recipe's own check
        assert data.std is not None
        return torch.tensor(data.mean), torch.tensor(data.std)
    if data.normalisation == "imagenet":
        return torch.tensor(IMAGENET[0]), torch.tensor(IMAGENET[1])
    return channel_statistics(splits.train.images)


def channel_statistics(images: Images | FolderImages) -> tuple[Tensor, Tensor]:
    """Mean and std, exact over all pixels; those of a folder come from the sums of its first pass."""
    mean, square = images.channel_moments() if isinstance(images, FolderImages) else _moments(images)
    std = np.sqrt(np.maximum(square - mean**2, 1e-6))
    return torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32)


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """uint8 [N,H,W,3] → float32 [N,3,H,W] in channels-last memory, which CPU convolutions prefer."""
    return ((images.float() / 255 - mean) / std).permute(0, 3, 1, 2)


def _moments(images: Images) -> tuple[Floats, Floats]:
    levels = np.arange(256) / 255
    means, squares = [], []
    for channel in range(3):
        values = np.bincount(images[..., channel].ravel(), minlength=256) / images[..., channel].size
        means.append(float(values @ levels))
        squares.append(float(values @ levels**2))
    return np.asarray(means), np.asarray(squares)
