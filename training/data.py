"""Named image sets as uint8 arrays, and the four disjoint splits every experiment uses.

A set NAME is one file NAME.npz under the data root (`--data-root`, default `data/`): `x_train, y_train, x_test, y_test`
for a labelled set with its own test split, `x` (and `y`) for a set with one split. Images are uint8 [N,H,W,3].
`confgate-train data import` writes these files.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.errors import DataError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

CIFAR10_LABELS = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
FASHION_MNIST_LABELS = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
# Names of the classes, for sets whose files hold numbers only.
LABEL_NAMES: dict[str, tuple[str, ...]] = {"cifar10": CIFAR10_LABELS, "fashion_mnist": FASHION_MNIST_LABELS}


@dataclass(frozen=True)
class LabelledImages:
    """Images and their classes, in the same order."""

    images: Images
    labels: Labels

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: NDArray[np.int64]) -> "LabelledImages":
        return LabelledImages(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class Splits:
    """train fits the weights, validation selects, calibration sets thresholds, test is reported once."""

    train: LabelledImages
    validation: LabelledImages
    calibration: LabelledImages
    test: LabelledImages
    label_names: tuple[str, ...]
    fingerprint: str  # of the images and the assignment to splits: two runs with the same one saw the same data

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(getattr(self, name)) for name in ("train", "validation", "calibration", "test")}


def read_arrays(name: str, root: Path) -> dict[str, NDArray[np.generic]]:
    """The arrays of one named set, checked for type and shape."""
    path = root / f"{name}.npz"
    if not path.is_file():
        raise DataError(
            f"data set '{name}' is not at {path}. Expected a file written by 'confgate-train data import {name} FILE'; "
            f"run that, or point --data-root at the folder that holds {name}.npz."
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, KeyError) as problem:
        raise DataError(f"{path} is not a readable .npz file ({problem}). Import the data set again.") from problem
    for key, array in arrays.items():
        if key.startswith("x") and (array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3):
            raise DataError(
                f"{path}: array '{key}' is {array.dtype} {list(array.shape)}, expected uint8 [N,H,W,3]. "
                f"Import the data set again."
            )
    return arrays


def load_labelled(name: str, root: Path) -> tuple[LabelledImages, LabelledImages]:
    """The published train and test parts of a labelled set."""
    arrays = read_arrays(name, root)
    missing = {"x_train", "y_train", "x_test", "y_test"} - arrays.keys()
    if missing:
        raise DataError(
            f"data set '{name}' has no {', '.join(sorted(missing))}: it has no labelled train and test parts, "
            f"so it can serve as out-of-distribution images but not to train on."
        )
    parts = []
    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"].astype(np.int64)
        if len(images) != len(labels):
            raise DataError(f"data set '{name}': {len(images)} {part} images but {len(labels)} labels.")
        parts.append(LabelledImages(images, labels))
    return parts[0], parts[1]


def load_unlabelled(name: str, root: Path) -> Images:
    """The images of a set used as out-of-distribution: its test part, or all of a set with one part."""
    arrays = read_arrays(name, root)
    for key in ("x_test", "x"):
        if key in arrays:
            return arrays[key].astype(np.uint8, copy=False)
    raise DataError(f"data set '{name}' has neither x_test nor x. Import it again.")


def load_splits(
    name: str, root: Path, validation: int, calibration: int, seed: int, limit: int | None = None
) -> Splits:
    """Cuts the published training part into train / validation / calibration; test stays as published.

    `seed` belongs to the data, not to the training run: networks trained with different seeds share their
    calibration images. `limit` keeps that many images of train and test, for quick tries.
    """
    published, test = load_labelled(name, root)
    label_names = LABEL_NAMES.get(name) or tuple(str(k) for k in range(int(published.labels.max()) + 1))
    for part, labels in (("train", published.labels), ("test", test.labels)):
        wrong = (labels < 0) | (labels >= len(label_names))
        if wrong.any():
            raise DataError(
                f"data set '{name}': {part} label {labels[wrong][0]} at index {int(np.argmax(wrong))} is outside "
                f"0…{len(label_names) - 1}, the range of its {len(label_names)} class names."
            )
    held_out = validation + calibration
    if held_out >= len(published):
        raise DataError(
            f"data set '{name}' has {len(published)} training images, too few for {validation} validation and "
            f"{calibration} calibration images plus any to train on. Lower data.validation and data.calibration."
        )
    order = np.random.default_rng(seed).permutation(len(published))
    train_indices = order[held_out:]
    if limit is not None:
        train_indices, test = train_indices[:limit], test.take(np.arange(min(limit, len(test))))
    train = published.take(train_indices)
    empty = [label_names[k] for k in range(len(label_names)) if not (train.labels == k).any()]
    if empty:
        raise DataError(f"data set '{name}': no training image of class {', '.join(empty)}.")
    digest = hashlib.sha256(published.images.tobytes())
    digest.update(np.ascontiguousarray(order).tobytes())
    digest.update(repr((validation, calibration, limit)).encode())
    return Splits(
        train=train,
        validation=published.take(order[:validation]),
        calibration=published.take(order[validation:held_out]),
        test=test,
        label_names=label_names,
        fingerprint=digest.hexdigest()[:16],
    )
