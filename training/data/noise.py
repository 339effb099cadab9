"""Noise sets: images that are drawn when they are used, always the same ones for one size.

Images are drawn in blocks, one after the other, from one random generator. Its state at the start of each block is
kept, so a block that was drawn once can be drawn again alone: 10,000 images of 224 pixels would take 1.5 GB.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

NOISE_IMAGES = 10_000
# Images drawn at a time. The values of a block must be a multiple of 4, which the generator makes of one draw: images
# then do not depend on the size of a block.
BLOCK = 20


class _Blocks:
    """All blocks of one kind of noise at one size; the last one is kept, because batches end within blocks."""

    def __init__(self, name: str, width: int, height: int) -> None:
        self.shape = (BLOCK, height, width, 3)
        self._draw = NOISE[name]
        self._random = np.random.default_rng([*name.encode()])
        self._starts: list[dict[str, Any]] = [dict(self._random.bit_generator.state)]
        self._last: tuple[int, Pixels] | None = None
        self._lock = Lock()  # batches are drawn ahead in another thread

    def block(self, number: int) -> Pixels:
        with self._lock:
            if self._last is None or self._last[0] != number:
                for before in range(len(self._starts) - 1, number):
                    self._drawn(before)
                self._last = (number, self._drawn(number))
            return self._last[1]

    def _drawn(self, number: int) -> Pixels:
        self._random.bit_generator.state = self._starts[number]
        images = self._draw(self._random, self.shape)
        if number + 1 == len(self._starts):
            self._starts.append(dict(self._random.bit_generator.state))
        return images


class NoiseImages:
    """Noise that looks like uint8 [N,H,W,3]; indexing draws, `select` does not."""

    def __init__(self, blocks: _Blocks, indices: NDArray[np.int64]) -> None:
        self._blocks, self._indices = blocks, indices

    @property
    def shape(self) -> tuple[int, int, int, int]:
        _, height, width, channels = self._blocks.shape
        return len(self), height, width, channels

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, key: slice | NDArray[np.int64], /) -> Pixels:
        wanted = self._indices[key]
        drawn = np.empty((len(wanted), *self.shape[1:]), np.uint8)
        numbers = wanted // BLOCK
        for number in np.unique(numbers).tolist():
            here = numbers == number
            drawn[here] = self._blocks.block(number)[wanted[here] % BLOCK]
        return drawn

    def select(self, indices: NDArray[np.int64]) -> "NoiseImages":
        """The images with these indices, not drawn yet."""
        return NoiseImages(self._blocks, self._indices[indices])


def noise(name: str, width: int, height: int | None = None) -> NoiseImages:
    """Noise as the paper defines it, in the 256 levels of an image file."""
    return NoiseImages(_Blocks(name, width, height or width), np.arange(NOISE_IMAGES))


def _uniform(random: np.random.Generator, shape: tuple[int, ...]) -> Pixels:
    return random.integers(0, 256, shape, dtype=np.uint8)


def _gaussian(random: np.random.Generator, shape: tuple[int, ...]) -> Pixels:
    """Mean 0.5 and variance 1 on the 0…1 scale, clipped to it: six in ten values end at black or white."""
    return np.rint(np.clip(random.normal(0.5, 1.0, shape), 0, 1) * 255).astype(np.uint8)


NOISE: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Pixels]] = {
    "uniform": _uniform,
    "gaussian": _gaussian,
}
