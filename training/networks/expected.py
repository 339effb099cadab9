"""What pretrained weights expect of an image. It belongs to the weights and is read from where they come from."""

from dataclasses import dataclass
from typing import Literal

Interpolation = Literal["nearest", "bilinear", "bicubic"]
Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Expected:
    """Pixels on the 0…1 scale are normalised by mean and std, after the image became size×size by a centre crop."""

    mean: Triple
    std: Triple
    size: int
    crop_fraction: float  # of the shorter side that the crop keeps: 224 / 256
    interpolation: Interpolation
