"""Images of any set as uint8 arrays, a few at a time: a set of photos is never in memory as a whole."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Input
from service.model.images import Pixels, fit_array

DECODED_AT_ONCE = 16  # at least so many, however small the batches: decoding then uses every CPU


class DecodedImages(Protocol):
    """Images that become uint8 [n,H,W,3] where they are sliced: `FolderImages`, and the views below."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice | NDArray[np.int64], /) -> Pixels: ...


AnyImages = Pixels | DecodedImages


@dataclass(frozen=True)
class ChosenImages:
    """The images of a set with these indices, in this order."""

    images: AnyImages
    indices: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.indices), *self.images.shape[1:]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: slice | NDArray[np.int64], /) -> Pixels:
        return self.images[self.indices[key]]


@dataclass(frozen=True)
class ResizedImages:
    """Images of any size at the size of a bundle, by the code that serves."""

    images: AnyImages
    target: Input

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.images), self.target.height, self.target.width, 3

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: slice | NDArray[np.int64], /) -> Pixels:
        stored = self.images[key]
        resized = np.empty((len(stored), *self.shape[1:]), np.uint8)
        for index, image in enumerate(stored):
            resized[index] = fit_array(image, self.target)
        return resized


def as_served(images: AnyImages, target: Input) -> AnyImages:
    """Images of any size, resized to the bundle's size when they are used."""
    return images if images.shape[1:3] == (target.height, target.width) else ResizedImages(images, target)


def batches_of(images: AnyImages, batch: int) -> Iterator[Pixels]:
    """All images in order, `batch` at a time; the next ones are decoded while the caller computes."""
    if isinstance(images, np.ndarray):
        yield from _batches(images, batch)
        return
    step = batch * ceil(DECODED_AT_ONCE / batch)
    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(images.__getitem__, slice(0, step))
        for following in range(step, len(images) + step, step):
            ready = coming.result()
            if following < len(images):
                coming = ahead.submit(images.__getitem__, slice(following, following + step))
            yield from _batches(ready, batch)


def _batches(images: Pixels, batch: int) -> Iterator[Pixels]:
    return (images[start : start + batch] for start in range(0, len(images), batch))
