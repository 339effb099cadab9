"""The images that a bundle was calibrated on and those to test it on, found from its provenance."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from service.model.bundle import Bundle
from training.bundles.made_by import recipe_of
from training.data.seen import Hashes, hashes_of
from training.data.splits import LabelledImages, Splits, moved_to, splits_for
from training.errors import DataError, RecipeError
from training.recipe import Data, Recipe, load_recipe, parse_recipe

FINGERPRINT = re.compile(r"fingerprint ([0-9a-f]{16})")


@dataclass(frozen=True)
class InDistribution:
    """A bundle's in-distribution images: `calibration` may set thresholds, `test` is only reported on."""

    dataset: str
    network: str
    fingerprint: str
    calibration: LabelledImages
    test: LabelledImages
    trained_on: Hashes  # of its training images
    budget: float | None = None  # β of the training, if its run is known


def in_distribution_of(
    bundle: Bundle, data_root: Path, run: Path | None = None, limit: int | None = None, data: Path | None = None
) -> InDistribution:
    """Finds the data by the bundle's recipe, or by the run it was exported from; other data is an error.

    `data` is where the folder of images that the run was trained on is now.
    """
    recipe = recipe_of_run(run) if run is not None else _recipe_of(bundle)
    try:
        splits = _splits(moved_to(recipe.data, data), data_root, _recorded(bundle))
    except DataError as problem:
        if run is not None:
            raise
        raise DataError(
            f"{problem} If the training of {bundle.folder} changed fields of its recipe, give --run, the folder of "
            f"its training."
        ) from problem
    if splits.fingerprint != _recorded(bundle):
        raise DataError(
            f"{bundle.folder} was made from '{bundle.manifest.provenance.data}', but {recipe.data.dataset} under "
            f"{data_root} has fingerprint {splits.fingerprint}: its calibration images might be among those it was "
            f"trained on. Point --data-root at the data it saw, or give --run, the folder of its training, if that "
            f"changed fields of the recipe."
        )
    return InDistribution(
        dataset=recipe.data.dataset,
        network=recipe.network.name,
        # The earlier form where there is one, so that evaluations of bundles of all versions are combined.
        fingerprint=splits.earlier or splits.fingerprint,
        calibration=_spread(splits.calibration, limit),
        test=_spread(splits.test, limit),
        trained_on=hashes_of(splits.train.images, splits.input),
        budget=None if run is None else _budget_of(bundle, run, recipe),
    )


def spread_indices(images: int, limit: int | None) -> np.ndarray:
    """Indices of at most `limit` images, evenly spaced: sets may be sorted by class."""
    if limit is None or images <= limit:
        return np.arange(images)
    return np.linspace(0, images - 1, limit).round().astype(np.int64)


def recipe_of_run(run: Path) -> Recipe:
    """The recipe that a run was trained with, including changes by `--set`."""
    record = run / "run.json"
    if not record.is_file():
        raise RecipeError(f"{run} holds no training run. Expected a folder written by 'confgate-train fit … --out'.")
    return parse_recipe(json.loads(record.read_text())["recipe"])


def _budget_of(bundle: Bundle, run: Path, recipe: Recipe) -> float | None:
    """β of the training; None for a run of another network, which may be given for its data alone."""
    made = bundle.manifest.provenance
    own = (recipe.name, json.loads((run / "run.json").read_text())["seed"]) == (made.recipe, made.seed)
    return recipe.confidence.budget if own and recipe.confidence.enabled else None


def _recipe_of(bundle: Bundle) -> Recipe:
    held = recipe_of(bundle.manifest)
    if held is not None:
        return held
    name = bundle.manifest.provenance.recipe
    try:
        return load_recipe(name)
    except RecipeError as problem:
        raise DataError(
            f"{bundle.folder} was made by '{name}', which is no recipe that ships with confgate, so its images cannot "
            f"be found. Give --run, the folder of its training."
        ) from problem


def _recorded(bundle: Bundle) -> str | None:
    """The fingerprint of the images that the bundle's network was trained on."""
    found = FINGERPRINT.search(bundle.manifest.provenance.data)
    return None if found is None else found[1]


@cache
def _splits(data: Data, root: Path, recorded: str | None) -> Splits:
    return splits_for(data, root, recorded=recorded)


def _spread(part: LabelledImages, limit: int | None) -> LabelledImages:
    return part if limit is None else part.take(spread_indices(len(part), limit))
