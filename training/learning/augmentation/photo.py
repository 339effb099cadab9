"""Augmentation of one photo of a folder with torchvision's transforms: a random crop, resized, maybe mirrored."""

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import training.torchvision_shim  # noqa: F401  (makes the next import work beside a CPU-only torch)

from torchvision.transforms import InterpolationMode, v2  # isort: skip

from service.model.bundle import Input
from service.model.images import Pixels, decode
from training.data.folder import MAX_PIXELS, FolderImages
from training.recipe import Augmentation

EXIF_ORIENTATION = 0x0112
LONGEST_SIDE = 4096


def augment_photo(images: FolderImages, index: int, augmentation: Augmentation, flip: bool, seed: int) -> Tensor:
    """One image [H,W,3] uint8; everything random in it follows from `seed`, in whatever process it is made."""
    path, target = images.paths[index], images.target
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # torchvision draws from the global generator
        if augmentation.smallest_area > 0:
            photo = Image.fromarray(_with_proportions(path.read_bytes(), target))
            crop = v2.RandomResizedCrop(
                (target.height, target.width),
                scale=(augmentation.smallest_area, 1.0),
                interpolation=InterpolationMode(target.interpolation),
            )
        else:
            photo = Image.fromarray(images.decode_one(path))
            crop = v2.RandomCrop(
                (target.height, target.width),
                padding=augmentation.crop_padding or None,
                padding_mode=augmentation.padding_mode,
            )
        photo = crop(photo)
    if flip:
        photo = v2.functional.horizontal_flip(photo)
    return torch.from_numpy(np.array(photo))


def _with_proportions(encoded: bytes, target: Input) -> Pixels:
    """The whole photo, shrunk to twice the target: enough to crop from, and cheap for large JPEGs."""
    with Image.open(io.BytesIO(encoded)) as header:
        width, height = header.size
        if header.getexif().get(EXIF_ORIENTATION, 1) >= 5:  # stored on its side
            width, height = height, width
    scale = min(1.0, 2 * max(target.width, target.height) / min(width, height), LONGEST_SIDE / max(width, height))
    shape = Input(
        width=max(1, round(width * scale)),
        height=max(1, round(height * scale)),
        resize="stretch",
        interpolation=target.interpolation,
    )
    return decode(encoded, shape, MAX_PIXELS)
