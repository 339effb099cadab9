"""Some images of a set: copied where they are in memory, chosen where they are decoded or drawn when they are used."""

from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]


class SelectableImages(Protocol):
    """Images that are decoded or drawn when they are used."""

    def select(self, indices: NDArray[np.int64]) -> Self: ...


Chosen = TypeVar("Chosen", bound=SelectableImages)


def taken(images: Images | Chosen, indices: NDArray[np.int64]) -> Images | Chosen:
    """The images with these indices, in this order."""
    return images[indices] if isinstance(images, np.ndarray) else images.select(indices)
