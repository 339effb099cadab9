"""Divides the labelled images of `learn-confidence --data`: what teaches the branch, and what sets thresholds."""

from pathlib import Path

import numpy as np

from training.data.assign import balanced_order
from training.data.files import shown
from training.data.labelled_folder import FEWEST_TO_CALIBRATE
from training.data.splits import LabelledImages
from training.errors import DataError

FEWEST_TO_LEARN = 50
CALIBRATION_SHARE = 0.2
SEED = 0


def divided(images: LabelledImages, folder: Path) -> tuple[LabelledImages, LabelledImages]:
    """What teaches, and what is held out to calibrate on: the same images each time the folder is read."""
    share = max(FEWEST_TO_CALIBRATE, round(CALIBRATION_SHARE * len(images)))
    if len(images) < share + FEWEST_TO_LEARN:
        raise DataError(
            f"--data {shown(folder)} holds {len(images)} images: expected at least {share + FEWEST_TO_LEARN}, of which "
            f"{share} are held out to calibrate on. Give more, or others to calibrate on with --calibration."
        )
    order = balanced_order(images.labels, SEED)
    return images.take(np.sort(order[share:])), images.take(np.sort(order[:share]))
