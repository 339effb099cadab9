"""What a foreign graph expects its pixels to be: order of channels, range, mean and standard deviation."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Channels = tuple[float, float, float]
Order = Literal["rgb", "bgr"]
IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)
AVERAGE_PIXEL, SPREAD_OF_PIXELS = 114.0, 57.0  # of photos, on the scale 0 to 255: ImageNet's
USUAL_SPREAD = (0.1, 10.0)  # of what a normalised image spreads over


@dataclass(frozen=True)
class Preprocessing:
    """The pixels p of 0 to 255 become (p · range / 255 − mean) / std, in the graph's own order of channels."""

    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    range: float = 1.0
    channels: Order = "rgb"

    @property
    def scale(self) -> NDArray[np.float64]:
        return self.range / (255 * np.asarray(self.std, np.float64))

    @property
    def shift(self) -> NDArray[np.float64]:
        return -np.asarray(self.mean, np.float64) / np.asarray(self.std, np.float64)

    @property
    def is_normalised(self) -> bool:
        """Whether its values spread by about 1, as the step ε of ODIN supposes."""
        spread = SPREAD_OF_PIXELS * float(np.mean(self.scale))
        return USUAL_SPREAD[0] <= spread <= USUAL_SPREAD[1]
