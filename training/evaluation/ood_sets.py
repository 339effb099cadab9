"""Out-of-distribution sets for an evaluation: each image is loaded and scored once, even if sets share it."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.model.bundle import Bundle, Input
from training.data.catalogue import ALL_IMAGES, CATALOGUE
from training.data.folder import FolderImages
from training.data.noise import NOISE, NoiseImages
from training.data.ood import all_images_parts, is_folder, load_ood, name_of
from training.data.seen import TRAINED_ON, hashes_of, refuse_seen
from training.data.taken import Images
from training.errors import DataError
from training.evaluation.in_distribution import InDistribution, spread_indices
from training.evaluation.outputs import ImageSet

TITLES = {
    "tinyimagenet_crop": "TinyImageNet (crop)",
    "tinyimagenet_resize": "TinyImageNet (resize)",
    "lsun_crop": "LSUN (crop)",
    "lsun_resize": "LSUN (resize)",
    "isun": "iSUN",
    "lsun_bedroom_crop": "LSUN bedrooms (crop)",
    "lsun_bedroom_resize": "LSUN bedrooms (resize)",
    "places_resize": "Places (resize)",
    "uniform": "Uniform noise",
    "gaussian": "Gaussian noise",
    "all_images": "All Images",
    "cifar10": "CIFAR-10",
    "svhn": "SVHN",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
}
STAND_INS = {wanted: substitute for wanted, substitute in ALL_IMAGES if substitute}
ALL = "all_images"


def title_of(name: str) -> str:
    """A set's name as the paper writes it; your own sets keep theirs."""
    return TITLES.get(name, name)


@dataclass(frozen=True)
class MeasuredSet:
    """A set as tables show it; `digest` tells whether another evaluation saw the same images."""

    name: str
    made_of: tuple[str, ...]
    n_calibration: int
    n_test: int
    digest: str

    @property
    def title(self) -> str:
        return title_of(self.name)

    @property
    def stand_ins(self) -> tuple[str, ...]:
        """The parts that are not the paper's own sets."""
        return tuple(part for part in self.made_of if part in STAND_INS.values())


@dataclass(frozen=True)
class OodSet:
    """One row of the table: `calibration` may choose ε and thresholds, `test` is reported on."""

    name: str
    calibration: tuple[ImageSet, ...]
    test: tuple[ImageSet, ...]
    made_of: tuple[str, ...]

    @property
    def measured(self) -> MeasuredSet:
        """What an evaluation records about this set."""
        digest = hashlib.sha256()
        for images in (*self.calibration, *self.test):
            digest.update(images.digest.encode())
        return MeasuredSet(
            self.name,
            self.made_of,
            sum(len(part) for part in self.calibration),
            sum(len(part) for part in self.test),
            digest.hexdigest()[:16],
        )


def load_sets(given: list[str], root: Path, target: Input, limit: int | None = None) -> tuple[OodSet, ...]:
    """What --ood gives, names and folders; `all_images` is the union of its parts, which are scored once."""
    names = [name_of(one, root) for one in given]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"--ood gives {', '.join(repeated)} more than once. Folders need different names.")
    parts: dict[str, OodSet] = {}

    def part(one: str) -> OodSet:
        name = name_of(one, root)
        if name not in parts:
            parts[name] = _load(one, name, root, target, limit)
        return parts[name]

    sets = []
    for one, name in zip(given, names, strict=True):
        members = [part(member) for member in (all_images_parts(root) if one == ALL else (one,))]
        sets.append(
            OodSet(
                name,
                tuple(image_set for member in members for image_set in member.calibration),
                tuple(image_set for member in members for image_set in member.test),
                tuple(member.name for member in members),
            )
        )
    return tuple(sets)


def present_or_stand_in(name: str, root: Path) -> str:
    """The set itself if present, else its stand-in if that is present; else the name, which load_sets rejects."""
    substitute = STAND_INS.get(name)
    if substitute and not (root / f"{name}.npz").is_file() and (root / f"{substitute}.npz").is_file():
        return substitute
    return name


def refuse_own_sets(given: Iterable[str], bundle: Bundle, in_distribution: InDistribution) -> None:
    """Fails if --ood names a set that the bundle's own images come from."""
    for name in in_distribution.named_sets:
        if name in given:
            raise DataError(
                f"--ood {name}: {bundle.folder} was trained or calibrated on it, so its images are in-distribution."
            )


def refuse_own_images(sets: Iterable[OodSet], bundle: Bundle, in_distribution: InDistribution) -> None:
    """Fails if an OOD image is one that the bundle was trained, calibrated or tested on."""
    target = bundle.manifest.input
    known = {
        TRAINED_ON: in_distribution.trained_on,
        "calibration images": hashes_of(in_distribution.calibration.images, target),
        "test images": hashes_of(in_distribution.test.images, target),
    }
    photos = {images.name: images for one in sets for images in (*one.calibration, *one.test)}
    for name, images in photos.items():
        if not isinstance(images.images, NoiseImages):
            assert isinstance(images.images, np.ndarray | FolderImages)  # what `_load` makes
            refuse_seen(f"--ood {name}", images.images, target, known)


def _load(given: str, name: str, root: Path, target: Input, limit: int | None) -> OodSet:
    if not is_folder(given, root) and given not in CATALOGUE and not (root / f"{given}.npz").is_file():
        present = sorted({path.stem for path in root.glob("*.npz")} | {*NOISE, ALL})
        raise DataError(
            f"--ood {given}: no such set or folder. Expected one of {', '.join(present)}, a folder of "
            f"images, or import it first: confgate-train data import {given} FOLDER_OF_IMAGES."
        )
    loaded = load_ood(given, root, target)

    def part_of(images: Images | FolderImages | NoiseImages, called: str) -> ImageSet:
        if limit is not None:
            some = spread_indices(len(images), limit)
            images = images[some] if isinstance(images, np.ndarray) else images.select(some)
        return ImageSet(f"{name} {called}", images)

    return OodSet(name, (part_of(loaded.calibration, "calibration"),), (part_of(loaded.test, "test"),), (name,))
