"""Augmentation of one photo of a folder with torchvision's transforms: a random crop, resized, maybe mirrored."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import training.torchvision_shim  # noqa: F401  (makes the next import work beside a CPU-only torch)

from torchvision.transforms import InterpolationMode, v2  # isort: skip

from training.data.folder import FolderImages
from training.recipe import Augmentation

GREY = (127, 127, 127)  # where an operation of RandAugment moves the photo away from a border


def augment_photo(images: FolderImages, index: int, augmentation: Augmentation, flip: bool, seed: int) -> Tensor:
    """One image [H,W,3] uint8; everything random in it follows from `seed`, in whatever process it is made."""
    target = images.target
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # torchvision draws from the global generator
        if augmentation.smallest_area > 0:
            photo = Image.fromarray(images.whole(index))
            crop = v2.RandomResizedCrop(
                (target.height, target.width),
                scale=(augmentation.smallest_area, 1.0),
                interpolation=InterpolationMode(target.interpolation),
            )
        else:
            photo = Image.fromarray(images.decode_one(images.paths[index]))
            crop = v2.RandomCrop(
                (target.height, target.width),
                padding=augmentation.crop_padding or None,
                padding_mode=augmentation.padding_mode,
            )
        photo = crop(photo)
        if augmentation.random_operations:
            operations = v2.RandAugment(
                augmentation.random_operations,
                augmentation.random_strength,
                interpolation=InterpolationMode.BILINEAR,
                fill=list(GREY),
            )
            photo = operations(photo)
    if flip:
        photo = v2.functional.horizontal_flip(photo)
    return torch.from_numpy(np.array(photo))
