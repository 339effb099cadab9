"""Assigns images to train, validation, calibration and test: seeded and disjoint."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from training.errors import DataError

Indices = NDArray[np.int64]
Share = int | float  # a number of images, or a fraction of them


@dataclass(frozen=True)
class Assignment:
    """Indices into the published training part; `test` is None where the set has a test part of its own."""

    order: Indices
    train: Indices
    validation: Indices
    calibration: Indices
    test: Indices | None


def assign(
    name: str, labels: NDArray[np.int64], validation: Share, calibration: Share, test: Share | None, seed: int
) -> Assignment:
    """Shuffles the images and holds out the first of them; the rest are for training."""
    # For a set with its own test part the order is a plain shuffle: another order would change the splits of every
    # earlier run. A set without one is usually small, so each of its parts gets its share of every class.
    order = np.random.default_rng(seed).permutation(len(labels)) if test is None else balanced_order(labels, seed)
    wanted = {"validation": validation, "calibration": calibration, "test": 0 if test is None else test}
    sizes = {part: _number(share, len(labels)) for part, share in wanted.items()}
    if sum(sizes.values()) >= len(labels):
        raise DataError(
            f"data set '{name}' has {len(labels)} images to divide, too few for "
            f"{', '.join(f'{size} {part}' for part, size in sizes.items() if size)} images plus any to train on. "
            f"Lower them with {' '.join(f'--set data.{part}=…' for part, size in sizes.items() if size)}."
        )
    bounds = np.cumsum([0, *sizes.values()])
    parts = [order[start:end] for start, end in pairwise(bounds)]
    return Assignment(order, order[bounds[-1] :], parts[0], parts[1], None if test is None else parts[2])


def balanced_order(labels: NDArray[np.int64], seed: int) -> Indices:
    """A shuffled order in which every stretch holds each class in proportion."""
    random = np.random.default_rng(seed)
    place = np.empty(len(labels))
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        place[members] = (np.arange(len(members)) + random.random()) / len(members)
    return np.argsort(place, kind="stable")


def _number(share: Share, of: int) -> int:
    return share if isinstance(share, int) else max(1, round(share * of))


def check_labels(name: str, label_names: tuple[str, ...], **parts: NDArray[np.int64]) -> None:
    """Every label must name a class."""
    for part, labels in parts.items():
        wrong = (labels < 0) | (labels >= len(label_names))
        if wrong.any():
            raise DataError(
                f"data set '{name}': {part} label {labels[wrong][0]} at index {int(np.argmax(wrong))} is outside "
                f"0…{len(label_names) - 1}, the range of its {len(label_names)} class names."
            )


def check_classes(name: str, label_names: tuple[str, ...], labels: NDArray[np.int64]) -> None:
    """Every class must have images to train on."""
    empty = [label_names[k] for k in range(len(label_names)) if not (labels == k).any()]
    if empty:
        raise DataError(
            f"data set '{name}': no training image of class {', '.join(empty)}. "
            f"Add images of it, or lower --set data.validation=… and --set data.calibration=…."
        )
