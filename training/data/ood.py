"""Out-of-distribution images: noise, sets of photos, and "All Images"; each split into calibration and test.

The split goes by source photo: image i of `tinyimagenet_crop` and image i of `tinyimagenet_resize` show the same photo
and land on the same side, so that no threshold is tuned on a photo that is later tested.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.data.catalogue import ALL_IMAGES, CATALOGUE, how_to_get
from training.data.listing import count_images, present_parts
from training.data.splits import Images, read_arrays
from training.errors import DataError

CALIBRATION_IMAGES = 1_000
NOISE_IMAGES = 10_000
NOISE_CHUNK = 500  # images drawn at a time: floats of 10,000 large images would not fit in memory


@dataclass(frozen=True)
class OodImages:
    """`calibration` may set thresholds, `test` is reported on; no source photo is in both."""

    calibration: Images
    test: Images


def load_ood(name: str, root: Path, size: int = 32, calibration: int = CALIBRATION_IMAGES) -> OodImages:
    """One named set. Noise is made at `size`; photos keep the size they are stored at."""
    if name == "all_images":
        parts = [load_ood(part, root, size, calibration) for part in all_images_parts(root)]
        return OodImages(_joined([part.calibration for part in parts]), _joined([part.test for part in parts]))
    images = noise(name, size) if name in NOISE else _photos(name, root)
    if calibration and len(images) <= calibration:
        raise DataError(
            f"data set '{name}' has {len(images)} images, too few for {calibration} calibration images plus any to "
            f"test on."
        )
    chosen = calibration_indices(name, len(images), calibration)
    rest = np.setdiff1d(np.arange(len(images)), chosen)
    return OodImages(images[chosen], images[rest])


def calibration_indices(name: str, images: int, calibration: int = CALIBRATION_IMAGES) -> NDArray[np.int64]:
    """The images of a set that are for calibration: the same in all sets made from the same photos."""
    source = _source(name)
    order = np.random.default_rng([*source.encode()]).permutation(images)
    return np.sort(order[:calibration])


def all_images_parts(root: Path) -> tuple[str, ...]:
    """The sets "All Images" consists of here: the paper's where they are present, else their stand-ins."""
    parts = []
    stand_ins = dict(ALL_IMAGES)
    for wanted, present in present_parts(root).items():
        if present is None:
            either = " or ".join(name for name in (wanted, stand_ins[wanted]) if name)
            raise DataError(f"all_images needs {either}, but {root} has none. To get it: {how_to_get(wanted)}.")
        parts.append(present)
    return tuple(parts)


def _source(name: str) -> str:
    known = CATALOGUE.get(name)
    return known.source if known and known.source else name


def _photos(name: str, root: Path) -> Images:
    arrays = read_arrays(name, root)
    images = next((arrays[key] for key in ("x_test", "x") if key in arrays), None)
    if images is None:
        raise DataError(f"data set '{name}' has neither x_test nor x. Import it again.")
    for sibling, known in CATALOGUE.items():
        # Equal indices mean equal photos only if both sets hold all of them.
        path = root / f"{sibling}.npz"
        if known.source and known.source == _source(name) and path.is_file() and count_images(path) != len(images):
            raise DataError(
                f"'{name}' has {len(images)} images and '{sibling}' {count_images(path)}, but both are made from the "
                f"same photos and must be split alike. Import both again from complete folders."
            )
    return images.astype(np.uint8, copy=False)


def _joined(parts: list[Images]) -> Images:
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise DataError(f"the parts of all_images have different sizes: {sorted(shapes)}. Import them at one size.")
    return np.concatenate(parts)


def noise(name: str, size: int, images: int = NOISE_IMAGES) -> Images:
    """Noise as the paper defines it, in the 256 levels of an image file; always the same for one size."""
    out = np.empty((images, size, size, 3), np.uint8)
    random = np.random.default_rng([*name.encode()])
    for start in range(0, images, NOISE_CHUNK):
        chunk = out[start : start + NOISE_CHUNK]
        chunk[:] = NOISE[name](random, chunk.shape)
    return out


def _uniform(random: np.random.Generator, shape: tuple[int, ...]) -> Images:
    return random.integers(0, 256, shape, dtype=np.uint8)


def _gaussian(random: np.random.Generator, shape: tuple[int, ...]) -> Images:
    """Mean 0.5 and variance 1 on the 0…1 scale, clipped to it: six in ten values end at black or white."""
    return np.rint(np.clip(random.normal(0.5, 1.0, shape), 0, 1) * 255).astype(np.uint8)


NOISE: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Images]] = {
    "uniform": _uniform,
    "gaussian": _gaussian,
}
