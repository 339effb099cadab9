"""Labelled images by name or from a folder, and the four disjoint splits every experiment uses.

A set NAME is one file NAME.npz under the data root (`--data-root`, default `data/`): `x_train, y_train, x_test, y_test`
for a labelled set with its own test part, `x` (and `y`, `label_names`) for a set of one part. Images are uint8
[N,H,W,3]. `confgate-train data import` writes these files. Your own folder of class sub-folders needs no such file: see
`class_folders`.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Input
from service.model.images import fit_array
from training.data.assign import Assignment, Share, assign, check_classes, check_labels
from training.data.catalogue import CATALOGUE, how_to_get
from training.data.class_folders import read_folder
from training.data.folder import FolderImages, Watch, unwatched
from training.data.taken import taken
from training.errors import DataError, RecipeError
from training.recipe import Data

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Arrays = dict[str, NDArray[np.generic]]  # what NAME.npz holds

FEW_CALIBRATION_IMAGES = 200
DEFAULT_TEST_SHARE = 0.15  # of a set that has no test part of its own


@dataclass(frozen=True)
class LabelledImages:
    """Images and their classes, in the same order; `images[i:j]` is a uint8 array for both kinds of images."""

    images: Images | FolderImages
    labels: Labels

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: NDArray[np.int64]) -> "LabelledImages":
        """The images with these indices, in this order."""
        return LabelledImages(taken(self.images, indices), self.labels[indices])


@dataclass(frozen=True)
class UnlabelledImages:
    """Images of which nobody has said what they show: enough for refusal rates, and for nothing about mistakes."""

    images: Images | FolderImages
    labels: None = None

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: NDArray[np.int64]) -> "UnlabelledImages":
        """The images with these indices, in this order."""
        return UnlabelledImages(taken(self.images, indices))


@dataclass(frozen=True)
class Splits:
    """train fits the weights, validation selects, calibration sets thresholds, test is only reported."""

    train: LabelledImages
    validation: LabelledImages
    calibration: LabelledImages
    test: LabelledImages
    label_names: tuple[str, ...]
    # Of the images, their labels and their assignment to splits: two runs with the same one saw the same data.
    fingerprint: str
    input: Input  # how an image is brought to the network's size, here and when it is served
    notes: tuple[str, ...] = ()
    # The fingerprint of the same splits as earlier versions computed it, of the training images alone.
    earlier: str | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The number of images in each split."""
        return {name: len(getattr(self, name)) for name in ("train", "validation", "calibration", "test")}


@dataclass(frozen=True)
class _Published:
    """A labelled set as published, before it is split."""

    train: LabelledImages
    test: LabelledImages | None
    label_names: tuple[str, ...]
    digest: "hashlib._Hash"
    validation: LabelledImages | None = None  # only folders may have such a part
    earlier_digest: "hashlib._Hash | None" = None
    notes: tuple[str, ...] = ()


def splits_for(data: Data, root: Path, watch: Watch = unwatched, recorded: str | None = None) -> Splits:
    """The splits a recipe's `data` section asks for, of a named set under `root` or of its folder.

    `split_seed` belongs to the data, not to the training run: networks trained with different seeds share their
    calibration images. `limit` keeps that many images of train and test, for quick trials. `recorded` is the
    fingerprint that a run or bundle has kept: where an earlier version made it, it is recognised and returned.
    """
    splits = _divided(_read_published(data, root, watch), data)
    if recorded is None or recorded == splits.fingerprint:
        return splits
    if data.folder is not None:
        # Earlier versions divided a folder in the order of its files' names.
        by_name = _divided(_read_published(data, root, watch, by_name=True), data)
        return replace(by_name, fingerprint=recorded) if recorded == by_name.earlier else splits
    return replace(splits, fingerprint=recorded) if recorded == splits.earlier else splits


def moved_to(data: Data, folder: Path | None) -> Data:
    """The same data where its folder is now: None if it is where it was. Only the fingerprint tells whether it is."""
    if folder is None:
        if data.folder is not None and not Path(data.folder).is_dir():
            raise DataError(f"the images are no longer at {data.folder}. If the folder moved, give --data NEW_FOLDER.")
        return data
    if data.folder is None:
        raise DataError(
            f"--data is for a run that was trained on a folder of images; '{data.dataset}' is a named set: point "
            f"--data-root at the folder that holds {data.dataset}.npz."
        )
    return data.model_copy(update={"folder": str(folder.resolve())})


def _divided(published: _Published, data: Data) -> Splits:
    test_share = _test_share(data, published)
    labels = published.train.labels
    held_out = data.validation if published.validation is None else 0
    where = assign(data.dataset, labels, held_out, data.calibration, test_share, data.split_seed)
    test = published.test if where.test is None else published.train.take(where.test)
    assert test is not None  # a set without a test part has a test share
    train_indices = where.train
    if data.limit is not None:
        train_indices, test = train_indices[: data.limit], test.take(np.arange(min(data.limit, len(test))))
    parts = {
        "train": published.train.take(train_indices),
        "validation": published.validation or published.train.take(where.validation),
        "calibration": published.train.take(where.calibration),
        "test": test,
    }
    check_classes(data.dataset, published.label_names, parts["train"].labels)
    target = _input(data, test.images)
    return Splits(
        **{name: _at_size(part, target) for name, part in parts.items()},
        label_names=published.label_names,
        fingerprint=_fingerprint(published.digest, where, data, test_share),
        input=target,
        notes=published.notes + _advice(parts),
        earlier=None
        if published.earlier_digest is None
        else _fingerprint(published.earlier_digest, where, data, test_share),
    )


def _advice(parts: dict[str, LabelledImages]) -> tuple[str, ...]:
    few = len(parts["calibration"])
    if few >= FEW_CALIBRATION_IMAGES:
        return ()
    return (
        f"only {few} calibration images: thresholds will be rough. More images, or a larger data.calibration, help",
    )


def _read_published(data: Data, root: Path, watch: Watch, by_name: bool = False) -> _Published:
    if data.folder is not None:
        assert data.size is not None  # the recipe's own check
        read = read_folder(Path(data.folder), _input(data, None), watch, by_name)
        for part, images in (("test", read.test), ("validation", read.validation)):
            if images is not None and not len(images[0]):
                raise DataError(f"the {part} part of {data.folder} holds no images. Add some, or remove the folder.")
        return _Published(
            LabelledImages(*read.train),
            None if read.test is None else LabelledImages(*read.test),
            read.label_names,
            hashlib.sha256(read.digest),
            None if read.validation is None else LabelledImages(*read.validation),
            hashlib.sha256(read.earlier_digest) if by_name and read.earlier_digest is not None else None,
            read.notes,
        )
    train, test, label_names = load_labelled(data.dataset, root)
    parts = [part for part in (train, test) if part is not None]
    digest = hashlib.sha256(repr(label_names).encode())
    for held in parts:
        digest.update(repr(held.images.shape).encode())
        digest.update(_bytes_of(held.images))
        digest.update(_bytes_of(held.labels))
    return _Published(train, test, label_names, digest, earlier_digest=hashlib.sha256(_bytes_of(train.images)))


def _bytes_of(array: object) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _test_share(data: Data, published: _Published) -> Share | None:
    if published.test is None:
        return DEFAULT_TEST_SHARE if data.test is None else data.test
    if data.test is not None:
        raise RecipeError(f"data.test is {data.test}, but '{data.dataset}' has a test part of its own. Leave it out.")
    return None


def _fingerprint(of_images: "hashlib._Hash", where: Assignment, data: Data, test_share: Share | None) -> str:
    digest = of_images.copy()
    digest.update(np.ascontiguousarray(where.order).tobytes())
    digest.update(repr((data.validation, data.calibration, data.limit)).encode())
    if test_share is not None:
        digest.update(repr(test_share).encode())
    return digest.hexdigest()[:16]


def _input(data: Data, images: Images | FolderImages | None) -> Input:
    height, width = (data.size, data.size) if data.size is not None or images is None else images.shape[1:3]
    if height != width:
        raise DataError(
            f"data set '{data.dataset}' has images of {width}×{height} pixels, but networks take squares. Set the side "
            f"with --size (data.size)."
        )
    return Input(
        width=width,
        height=height,
        resize=data.resize,
        interpolation=data.interpolation,
        crop_fraction=data.crop_fraction,
        decode_margin=data.decode_margin,
    )


def _at_size(part: LabelledImages, target: Input) -> LabelledImages:
    """Resizes arrays to the network's size with the code that serves; a folder is resized when it is decoded."""
    if isinstance(part.images, FolderImages) or part.images.shape[1:3] == (target.height, target.width):
        return part
    resized = np.empty((len(part), target.height, target.width, 3), np.uint8)
    for index, image in enumerate(part.images):
        resized[index] = fit_array(image, target)
    return LabelledImages(resized, part.labels)


def read_arrays(name: str, root: Path) -> Arrays:
    """The arrays of one named set, checked for type and shape."""
    path = root / f"{name}.npz"
    if not path.is_file():
        raise DataError(
            f"data set '{name}' is not at {path}. To get it: {how_to_get(name)}. "
            f"Or point --data-root at the folder that holds {name}.npz."
        )
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, KeyError, TypeError, BadZipFile) as problem:  # TypeError: it is a lone array
        raise DataError(f"{path} is not a readable .npz file ({problem}). Import the data set again.") from problem
    for key, array in arrays.items():
        if key.startswith("x") and (array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3):
            raise DataError(
                f"{path}: array '{key}' is {array.dtype} {list(array.shape)}, expected uint8 [N,H,W,3]. "
                f"Import the data set again."
            )
    return arrays


def load_labelled(name: str, root: Path) -> tuple[LabelledImages, LabelledImages | None, tuple[str, ...]]:
    """The published train part, the test part where there is one, and the names of the classes."""
    known = CATALOGUE.get(name)
    if known is not None and known.made_here:
        raise DataError(f"'{name}' is {known.what}: it has no labels, so it serves only as --ood {name}.")
    arrays = read_arrays(name, root)
    parts: dict[str, LabelledImages] = {}
    for part, suffix in (("train", "_train"), ("test", "_test"), ("all", "")):
        if f"x{suffix}" in arrays and f"y{suffix}" in arrays:
            images, labels = arrays[f"x{suffix}"], arrays[f"y{suffix}"].astype(np.int64)
            if len(images) != len(labels):
                raise DataError(f"data set '{name}': {len(images)} {part} images but {len(labels)} labels.")
            parts[part] = LabelledImages(images, labels)  # type: ignore[arg-type]  # uint8: read_arrays checked it
    train = parts.get("train", parts.get("all"))
    if train is None or ("train" in parts) != ("test" in parts):
        raise DataError(
            f"data set '{name}' has no labelled train and test parts (x_train, y_train, x_test, y_test, or x and y), "
            f"so it can serve as out-of-distribution images but not to train on."
        )
    label_names = _label_names(name, arrays, train.labels)
    check_labels(name, label_names, **{part: images.labels for part, images in parts.items()})
    return train, parts.get("test"), label_names


def _label_names(name: str, arrays: Arrays, labels: Labels) -> tuple[str, ...]:
    if "label_names" in arrays:
        return tuple(str(label) for label in arrays["label_names"])
    known = CATALOGUE.get(name)
    if known and known.label_names:
        return known.label_names
    return tuple(str(k) for k in range(int(labels.max(initial=-1)) + 1))
