"""What a recipe leaves to the photos: fields that say `auto` follow their number, and what is trained the device.

The loaded recipe has the numbers, so a run's record and its bundle say what was done, and `--set` changes any of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.data.class_folders import Counted, count_images
from training.errors import RecipeError

AUTO = "auto"
# Of the images of a folder without a part of its own for it.
VALIDATION_SHARE, TEST_SHARE = 0.1, 0.15
# Thresholds are measured on the calibration images: about so many are enough, and a quarter of all is too many to lose.
CALIBRATION_IMAGES, MOST_CALIBRATION_IMAGES = 300, 5_000
CALIBRATION_SHARES = (0.1, 0.25)
SHOWN_IMAGES = 55_000  # over all epochs
EPOCHS = (8, 60)
BATCHES = ((640, 32), (200, 16), (0, 8))  # from so many training images


def automatic(fields: dict[str, Any], recipe: str, on_cpu: bool) -> dict[str, Any]:
    """The fields of a recipe with a value for every `auto`; they are as they were where none says so."""
    data, optimiser = (fields.get(section) for section in ("data", "optimiser"))
    if not isinstance(data, dict) or not isinstance(optimiser, dict):
        return fields  # the check of the recipe says what is wrong
    if AUTO not in (*data.values(), *optimiser.values()):
        return fields
    if data.get("folder") is None:
        raise RecipeError(
            f"recipe '{recipe}' is for photos of your own. Give --data DIR, with one sub-folder of photos for each "
            f"class: DIR/cat/1.jpg, DIR/dog/1.jpg …"
        )
    counted = count_images(Path(data["folder"]))
    filled = _filled(data, _shares(counted))
    training = counted.train - sum(
        _number(filled.get(part), counted.train, present)
        for part, present in (("validation", counted.validation), ("calibration", None), ("test", counted.test))
    )
    return fields | {"data": filled, "optimiser": _filled(optimiser, _training(training, on_cpu))}


def _shares(counted: Counted) -> dict[str, Callable[[], Any]]:
    lowest, highest = (share * counted.train for share in CALIBRATION_SHARES)
    calibration = min(MOST_CALIBRATION_IMAGES, max(lowest, min(highest, CALIBRATION_IMAGES)))
    return {
        "validation": lambda: VALIDATION_SHARE,
        "calibration": lambda: max(1, round(calibration)),
        "test": lambda: TEST_SHARE if counted.test is None else None,
    }


def _training(images: int, on_cpu: bool) -> dict[str, Callable[[], Any]]:
    images = max(1, images)
    fewest, most = EPOCHS
    return {
        "trains": lambda: "head" if on_cpu else "network",
        "epochs": lambda: min(most, max(fewest, round(SHOWN_IMAGES / images))),
        "batch_size": lambda: min(images, next(size for least, size in BATCHES if images >= least)),
    }


def _filled(section: dict[str, Any], values: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    unknown = [field for field, value in section.items() if value == AUTO and field not in values]
    if unknown:
        raise RecipeError(f"{', '.join(unknown)} cannot be 'auto'. Expected a value; auto is for {', '.join(values)}.")
    return {field: values[field]() if value == AUTO else value for field, value in section.items()}


def _number(share: Any, of: int, present: int | None) -> int:
    """How many images a part takes from the training folder; none if it has a folder of its own."""
    if present is not None or share is None:
        return 0
    return share if isinstance(share, int) else round(share * of)
