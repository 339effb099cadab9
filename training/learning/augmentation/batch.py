"""Crop, flip and Cutout on whole batches of uint8 images: a few gathers a batch, no loop over images.

Every random choice comes from the generator that is passed in, so that a step's augmentation depends on the seed and
the step number alone: a resumed run repeats it exactly.
"""

import torch
from torch import Tensor

from training.recipe import Augmentation


def pad_images(images: Tensor, augmentation: Augmentation) -> Tensor:
    """Adds a border to crop from, once before training: [N,H,W,3] → [N,H+2p,W+2p,3]."""
    p = augmentation.crop_padding
    if p == 0:
        return images
    channels_first = images.permute(0, 3, 1, 2)
    if augmentation.padding_mode == "reflect":
        # reflection_pad2d has no uint8 kernel; index arithmetic does the same.
        height, width = images.shape[1:3]
        rows, columns = _reflected(height, p), _reflected(width, p)
        return images[:, rows][:, :, columns].contiguous()
    return torch.nn.functional.pad(channels_first, (p, p, p, p)).permute(0, 2, 3, 1).contiguous()


def _reflected(length: int, padding: int) -> Tensor:
    positions = torch.arange(-padding, length + padding).abs()
    return torch.where(positions >= length, 2 * (length - 1) - positions, positions)


def augment(
    padded: Tensor, indices: Tensor, epoch: int, augmentation: Augmentation, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """One batch of crops [B,H,W,3] uint8, and its Cutout mask [B,H,W] (False where pixels must be blanked).

    The mask is returned, not applied: blanked pixels must hold the mean of the data, and that is zero only after
    normalisation.
    """
    p = augmentation.crop_padding
    batch = len(indices)
    height, width = padded.shape[1] - 2 * p, padded.shape[2] - 2 * p
    top = torch.randint(0, 2 * p + 1, (batch,), generator=generator)
    left = torch.randint(0, 2 * p + 1, (batch,), generator=generator)
    flipped = flips(indices, epoch, augmentation, generator)
    rows = top[:, None] + torch.arange(height)
    columns = torch.arange(width).expand(batch, width)
    columns = left[:, None] + torch.where(flipped[:, None], width - 1 - columns, columns)
    # Everything is drawn on the CPU, so that a seed gives the same on every device; only the gather runs on the device.
    where = [index.to(padded.device) for index in (indices[:, None, None], rows[:, :, None], columns[:, None, :])]
    return padded[*where], cutout_mask(batch, height, width, augmentation, generator)


def flips(indices: Tensor, epoch: int, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Which images are mirrored."""
    coin = torch.rand(len(indices), generator=generator) < 0.5
    if augmentation.flip == "none":
        return torch.zeros_like(coin)
    if augmentation.flip == "random":
        return coin
    # alternate: an image seen as it is in one epoch is mirrored in the next, so that two epochs show every
    # image both ways; which half begins mirrored depends on the image alone (a hash of its index).
    return ((indices * 2654435761 >> 16) + epoch) % 2 == 1


def cutout_mask(batch: int, height: int, width: int, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Square holes whose centre lies anywhere in the image, so that part of a hole may fall outside it."""
    size = augmentation.cutout_size
    chosen = torch.rand(batch, generator=generator) < augmentation.cutout_share
    centre_y = torch.randint(0, height, (batch,), generator=generator)
    centre_x = torch.randint(0, width, (batch,), generator=generator)
    offset_y = torch.arange(height) - centre_y[:, None] + size // 2
    offset_x = torch.arange(width) - centre_x[:, None] + size // 2
    in_rows = (offset_y >= 0) & (offset_y < size)
    in_columns = (offset_x >= 0) & (offset_x < size)
    hole = in_rows[:, :, None] & in_columns[:, None, :] & chosen[:, None, None]
    return ~hole


def shrink_early(images: Tensor, progress: float, augmentation: Augmentation) -> Tensor:
    """Shrinks the images of the first part of training if the recipe says so: a step costs less with fewer pixels."""
    if augmentation.early_scale == 1 or progress >= augmentation.early_share:
        return images
    small = [round(side * augmentation.early_scale) for side in images.shape[2:]]
    shrunk = torch.nn.functional.interpolate(images, small, mode="bilinear", antialias=True, align_corners=False)
    return shrunk.contiguous(memory_format=torch.channels_last)
