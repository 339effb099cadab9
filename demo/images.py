"""The images that are sent: in-distribution ones (CIFAR-10 with its labels), and out-of-distribution (OOD) ones.

The test part of a full set is used if `confgate-train data` has stored one (DATA_ROOT/NAME.npz); no model was trained
or calibrated on it. A clean clone has none and uses the samples in tests/fixtures, the first 200 images of the
published test sets.
"""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from demo.errors import DemoError

SAMPLES = Path(__file__).parent.parent / "tests" / "fixtures"
SAMPLES_A_ROW = 20
NOISE = ("uniform", "gaussian")
NOISE_IMAGES = 1000
KNOWN = "cifar10"

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class ImageSet:
    """The images of one set, uint8 [N,H,W,3]; `labels` is None if they are OOD."""

    name: str
    images: Images
    labels: tuple[int, ...] | None
    where: str  # their origin, in words

    def __len__(self) -> int:
        return len(self.images)

    def png(self, index: int) -> bytes:
        file = io.BytesIO()
        Image.fromarray(self.images[index]).save(file, "PNG", compress_level=1)
        return file.getvalue()


class Deck:
    """Draws indices in random order; reshuffles when all have been drawn."""

    def __init__(self, size: int, random: np.random.Generator) -> None:
        self._size, self._random = size, random
        self._left: list[int] = []

    def draw(self) -> int:
        if not self._left:
            self._left = self._random.permutation(self._size).tolist()
        return self._left.pop()


def known_images(data_root: Path) -> ImageSet:
    """CIFAR-10 test images with their classes."""
    file = data_root / f"{KNOWN}.npz"
    if file.is_file():
        images, labels = _arrays(file, ("x_test",), ("y_test",))
        assert labels is not None
        return ImageSet(KNOWN, images, tuple(labels.tolist()), f"the {len(images):,} test images in {file}")
    images = _sample_sheet(KNOWN)
    labels_of_samples = json.loads((SAMPLES / "labels.json").read_text(encoding="utf-8"))[KNOWN]
    return ImageSet(KNOWN, images, tuple(labels_of_samples), _where_samples(KNOWN, len(images)))


def foreign_images(name: str, data_root: Path, seed: int) -> ImageSet:
    """OOD images: a set by name, or noise."""
    if name in NOISE:
        return ImageSet(name, _noise(name, seed), None, f"{NOISE_IMAGES:,} images generated for this run")
    file = data_root / f"{name}.npz"
    sheet = SAMPLES / f"{name}.png"
    if name == KNOWN or not (file.is_file() or sheet.is_file()):
        stored = {path.stem for path in data_root.glob("*.npz")} | {"fashion_mnist"}
        known = ", ".join([*sorted(stored - {KNOWN}), *NOISE])
        reason = "is what the model knows" if name == KNOWN else f"is neither noise nor a file {file}"
        raise DemoError(f"--foreign {name} {reason}. There are: {known}.")
    if file.is_file():
        images, _ = _arrays(file, ("x_test", "x"), ())
        return ImageSet(name, images, None, f"the {len(images):,} test images in {file}")
    images = _sample_sheet(name)
    return ImageSet(name, images, None, _where_samples(name, len(images)))


def _where_samples(name: str, count: int) -> str:
    return f"{count} test images in tests/fixtures/{name}.png"


def _arrays(file: Path, images: tuple[str, ...], labels: tuple[str, ...]) -> tuple[Images, NDArray[np.int64] | None]:
    """The first of the named arrays that the file has, and its labels."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            key = next((key for key in images if key in stored), None)
            if key is None or any(label not in stored for label in labels):
                raise DemoError(f"{file} holds {', '.join(stored)}; expected {' or '.join(images)}. Import it again.")
            found, classes = stored[key], stored[labels[0]] if labels else None
    except (OSError, ValueError, BadZipFile) as problem:
        raise DemoError(f"{file} cannot be read ({problem}). Import it again, or remove it.") from problem
    if found.dtype != np.uint8 or found.ndim != 4 or found.shape[3] != 3 or not len(found):
        raise DemoError(f"{file}: {key} is {found.dtype} {list(found.shape)}, expected uint8 [N,H,W,3].")
    return found, classes


def _sample_sheet(name: str) -> Images:
    with Image.open(SAMPLES / f"{name}.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    side = pixels.shape[1] // SAMPLES_A_ROW
    tiles = pixels.reshape(-1, side, SAMPLES_A_ROW, side, 3).swapaxes(1, 2)
    return tiles.reshape(-1, side, side, 3)


def _noise(name: str, seed: int) -> Images:
    """The paper's noise: each value uniform, or Gaussian with mean 0.5 and variance 1, then clipped."""
    random, shape = np.random.default_rng(seed), (NOISE_IMAGES, 32, 32, 3)
    if name == "uniform":
        return random.integers(0, 256, shape, dtype=np.uint8)
    return np.rint(np.clip(random.normal(0.5, 1.0, shape), 0, 1) * 255).astype(np.uint8)
