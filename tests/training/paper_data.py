"""Tiny files under the names of the paper's data sets: what its experiments need, small enough for a test."""

from pathlib import Path

import numpy as np

from service.model.bundle import Input
from tests.training.command_line import coloured

SIZE = 12
TARGET = Input(width=SIZE, height=SIZE, resize="stretch", interpolation="bicubic")
OUTSIDE = ("tinyimagenet_crop", "tinyimagenet_resize", "lsun_bedroom_crop", "lsun_bedroom_resize", "places_resize")
# Half of each set is for calibration, the rest is tested on.
OUTSIDE_IMAGES = 1_040


def write_paper_data(root: Path, inside: str = "cifar10") -> Path:
    """A labelled set with a third of its labels wrong, so that there are mistakes to learn from; and the others."""
    root.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(5)
    arrays = {}
    for part, images, seed in (("train", 330, 1), ("test", 60, 2)):
        shown = np.arange(images) % 3
        told = np.where(random.random(images) < 1 / 3, random.integers(0, 3, images), shown)
        arrays |= {f"x_{part}": coloured(shown, SIZE, seed), f"y_{part}": told}
    np.savez(root / f"{inside}.npz", **arrays, label_names=["red", "green", "blue"])
    for number, name in enumerate(OUTSIDE):
        grey = random.integers(0, 40 * (number + 2), (OUTSIDE_IMAGES, SIZE, SIZE, 1))
        np.savez(root / f"{name}.npz", x=np.repeat(grey, 3, axis=3).astype(np.uint8))
    return root


# What makes a recipe of the compact network small enough.
TINY = (
    *("--set", "data.validation=30", "--set", "data.calibration=120", "--set", "optimiser.epochs=2"),
    *("--set", "optimiser.batch_size=45", "--set", "network.widths=[8,8,8]", "--set", "confidence.branch_hidden=[4]"),
    # Crops of such small images must leave the network something to learn in two epochs.
    *("--set", "augment.crop_padding=1", "--set", "augment.early_share=0"),
)
