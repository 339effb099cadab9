"""Out-of-distribution images: noise, sets of photos, "All Images", folders of your own; each split into calibration and
test.

The split of a named set goes by source photo: image i of `tinyimagenet_crop` and image i of `tinyimagenet_resize` show
the same photo and land on the same side, so that no threshold is tuned on a photo that is later tested. That of a
folder goes by the content of its files: neither their names nor the bundle at hand change it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Input
from service.model.images import fit_array
from training.data.catalogue import ALL_IMAGES, CATALOGUE, how_to_get
from training.data.class_folders import title_of_folder
from training.data.files import find_images, shown
from training.data.folder import FolderImages, by_content, check_files, without_copies
from training.data.listing import count_images, present_parts
from training.data.noise import NOISE, NoiseImages, noise
from training.data.seen import Hashes, refuse_seen
from training.data.splits import Images, read_arrays
from training.data.taken import taken
from training.errors import DataError

CALIBRATION_IMAGES = 1_000
FEWEST_IMAGES = 20  # half of them for thresholds: with fewer, one image would move a figure by more than 10 points


@dataclass(frozen=True)
class OodImages:
    """`calibration` may set thresholds, `test` is reported on; no source photo is in both."""

    calibration: Images | FolderImages | NoiseImages
    test: Images | FolderImages | NoiseImages


def load_ood(given: str, root: Path, target: Input, most: int = CALIBRATION_IMAGES) -> OodImages:
    """One named set, or a folder. Noise is drawn at the target size; stored photos keep the size they are stored at."""
    if is_folder(given, root):
        return _of_folder(Path(given), target, most)
    if given == "all_images":
        parts = [load_ood(part, root, target, most) for part in all_images_parts(root)]
        return OodImages(
            _joined([part.calibration for part in parts], target), _joined([part.test for part in parts], target)
        )
    images = noise(given, target.width, target.height) if given in NOISE else _photos(given, root)
    _check_enough(f"data set '{given}'", len(images))
    chosen = calibration_indices(given, len(images), calibration_share(len(images), most))
    rest = np.setdiff1d(np.arange(len(images)), chosen)
    return OodImages(taken(images, chosen), taken(images, rest))


def load_oods(given: Iterable[str], root: Path, target: Input) -> dict[str, OodImages]:
    """Every set that --ood gives, by its name: that of a folder is its last part."""
    loaded: dict[str, OodImages] = {}
    for one in given:
        name = name_of(one, root)
        if name in loaded:
            raise DataError(f"--ood gives {name} more than once. Give each set once; folders need different names.")
        loaded[name] = load_ood(one, root, target)
    return loaded


def is_folder(given: str, root: Path) -> bool:
    """Whether --ood gives a folder. A name that is known comes first; `./NAME` is always a folder."""
    known = given in CATALOGUE or (root / f"{given}.npz").is_file()
    return not known and ("/" in given or "\\" in given or Path(given).is_dir())


def name_of(given: str, root: Path) -> str:
    """What a set is called in tables, policies and cards."""
    return title_of_folder(Path(given)) if is_folder(given, root) else given


def calibration_share(images: int, most: int = CALIBRATION_IMAGES) -> int:
    """How many of a set's images are for calibration: at most half."""
    return min(most, images // 2)


def refuse_seen_ood(ood: Mapping[str, OodImages], target: Input, known: Mapping[str, Hashes]) -> None:
    """Fails if an OOD image is one that the model knows; noise is known to nobody."""
    for name, images in ood.items():
        for part in (images.calibration, images.test):
            if not isinstance(part, NoiseImages):
                refuse_seen(f"--ood {name}", part, target, known)


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


def _of_folder(folder: Path, target: Input, most: int) -> OodImages:
    if not folder.is_dir():
        raise DataError(f"--ood {shown(folder)} is not a folder. Expected one of image files, or the name of a set.")
    facts = check_files([(file, 0) for file in find_images(folder).files], target)
    # Copies would otherwise fall on both sides: of files, and of what the network sees of them.
    seen = {fact.pixels: fact for fact in reversed(by_content(without_copies(facts)))}
    ordered = by_content(seen.values())
    _check_enough(f"--ood {shown(folder)}", len(ordered))
    images = FolderImages.of(ordered, target)
    share = calibration_share(len(images), most)
    return OodImages(images.select(np.arange(share)), images.select(np.arange(share, len(images))))


def _check_enough(what: str, images: int) -> None:
    if images < FEWEST_IMAGES:
        raise DataError(
            f"{what} has {images} different images, too few for OOD images: at least {FEWEST_IMAGES} are needed, half "
            f"to calibrate on and half to test on."
        )


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


def _joined(parts: list[Images | FolderImages | NoiseImages], target: Input) -> Images:
    """One array; parts of different sizes are brought to the network's by the code that serves."""
    arrays = [part[:] for part in parts]
    if len({array.shape[1:] for array in arrays}) > 1:
        arrays = [np.stack([fit_array(image, target) for image in array]) for array in arrays]
    return np.concatenate(arrays)
