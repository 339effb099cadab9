"""The images that a bundle was calibrated on and those to test it on, found from its provenance."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from service.model.bundle import Bundle
from training.bundles.evidence import CALIBRATED_ON
from training.bundles.made_by import recipe_of, recipe_of_run
from training.bundles.recorded_images import is_imported
from training.data.seen import TRAINED_ON, Hashes, fingerprint_of, hashes_in, hashes_of, refuse_seen
from training.data.splits import Splits, moved_to, splits_for
from training.errors import DataError, RecipeError
from training.evaluation.own_images import GivenFolders, OwnImages, OwnPart, own_calibration, own_test
from training.recipe import Data, Recipe, load_recipe

Split = Literal["calibration", "test"]
OR_FOLDERS = "Or give folders of images it has not seen: --calibration DIR and --test DIR."
FINGERPRINT = re.compile(r"fingerprint ([0-9a-f]{16})")


@dataclass(frozen=True)
class InDistribution:
    """A bundle's in-distribution images: `calibration` may set thresholds, `test` is only reported on."""

    dataset: str
    network: str
    fingerprint: str
    calibration: OwnImages
    test: OwnImages
    trained_on: Hashes  # of its training images
    budget: float | None = None  # β of the training, if its run is known
    calibrated_on_its_split: bool = True  # of its training; the bank of neighbours then holds none of these images
    named_sets: tuple[str, ...] = ()  # the named sets among its own images
    notes: tuple[str, ...] = ()


def in_distribution_of(
    bundle: Bundle,
    data_root: Path,
    run: Path | None = None,
    limit: int | None = None,
    data: Path | None = None,
    given: GivenFolders | None = None,
) -> InDistribution:
    """Finds the images by the bundle's record, or by the run it was exported from; other data is an error.

    `data` is where the folder of images that the run was trained on is now; `given` are folders in place of those that
    the bundle was calibrated and tested on.
    """
    if is_imported(bundle.manifest) and (run is not None or data is not None):
        raise DataError(
            f"{bundle.folder} was imported and not trained here, so {'--run' if run is not None else '--data'} does "
            f"not help. Give --calibration DIR and --test DIR."
        )
    given = given or GivenFolders()
    calibration, test = own_calibration(bundle, given, data_root), own_test(bundle, given, data_root)
    training = None
    if calibration is None or test is None or run is not None or data is not None:
        training = _training_of(bundle, data_root, run, data)
    calibrated_on_its_split = calibration is None
    trained_on = hashes_in(bundle) if training is None else training.trained_on
    if calibration is None and test is None:
        assert training is not None
        fingerprint = training.fingerprint
        calibration, test = training.part("calibration"), training.part("test")
    else:
        calibration = _unseen(calibration, training, "calibration", bundle, {TRAINED_ON: trained_on})
        calibrated_on = hashes_of(calibration.images.images, bundle.manifest.input)
        seen = {CALIBRATED_ON: calibrated_on}
        test = _unseen(test, training, "test", bundle, {TRAINED_ON: trained_on}, seen)
        fingerprint = fingerprint_of(
            bundle.manifest.input, *((part.images.images, part.images.labels) for part in (calibration, test))
        )
    return InDistribution(
        dataset=test.name,
        network=_network_of(bundle, training),
        fingerprint=fingerprint,
        calibration=_spread(calibration.images, limit),
        test=_spread(test.images, limit),
        trained_on=trained_on,
        budget=None if run is None or training is None else _budget_of(bundle, run, training.recipe),
        calibrated_on_its_split=calibrated_on_its_split,
        named_sets=tuple(dict.fromkeys(part.name for part in (calibration, test) if part.is_named_set)),
        notes=tuple(dict.fromkeys((*calibration.notes, *test.notes))),
    )


@dataclass(frozen=True)
class _Training:
    """The recipe and the splits of a bundle's training."""

    recipe: Recipe
    splits: Splits

    @property
    def trained_on(self) -> Hashes:
        return hashes_of(self.splits.train.images, self.splits.input)

    @property
    def fingerprint(self) -> str:
        """The earlier form where there is one, so that evaluations of bundles of all versions are combined."""
        return self.splits.earlier or self.splits.fingerprint

    def part(self, split: Split) -> OwnPart:
        images = self.splits.calibration if split == "calibration" else self.splits.test
        name = self.recipe.data.dataset
        return OwnPart(images, name, f"the {split} images of {name}", is_named_set=self.recipe.data.folder is None)


def _unseen(
    part: OwnPart | None,
    training: _Training | None,
    split: Split,
    bundle: Bundle,
    trained_on: Mapping[str, Hashes],
    others: Mapping[str, Hashes] | None = None,
) -> OwnPart:
    """The part, or that of the training; fails if an image is known. Splits of a training are disjoint already."""
    known = dict(others or {})
    if part is None:
        assert training is not None
        part = training.part(split)
    else:
        known |= trained_on
    refuse_seen(part.where, part.images.images, bundle.manifest.input, known)
    return part


def _network_of(bundle: Bundle, training: _Training | None) -> str:
    if is_imported(bundle.manifest):
        return bundle.manifest.name
    recipe = recipe_of(bundle.manifest) if training is None else training.recipe
    return bundle.manifest.provenance.recipe if recipe is None else recipe.network.name


def _training_of(bundle: Bundle, data_root: Path, run: Path | None, data: Path | None) -> _Training:
    """By the recipe of the run or the bundle; `data` is where the folder of images is now."""
    recipe = recipe_of_run(run) if run is not None else _recipe_of(bundle)
    try:
        splits = _splits(moved_to(recipe.data, data), data_root, _recorded(bundle))
    except DataError as problem:
        if run is not None:
            raise
        raise DataError(
            f"{problem} If the training of {bundle.folder} changed fields of its recipe, give --run, the folder of "
            f"its training. {OR_FOLDERS}"
        ) from problem
    if splits.fingerprint != _recorded(bundle):
        raise DataError(
            f"{bundle.folder} was made from '{bundle.manifest.provenance.data}', but {recipe.data.dataset} under "
            f"{data_root} has fingerprint {splits.fingerprint}: its calibration images might be among those it was "
            f"trained on. Point --data-root at the data it saw, or give --run, the folder of its training, if that "
            f"changed fields of the recipe. {OR_FOLDERS}"
        )
    return _Training(recipe, splits)


def spread_indices(images: int, limit: int | None) -> np.ndarray:
    """Indices of at most `limit` images, evenly spaced: sets may be sorted by class."""
    if limit is None or images <= limit:
        return np.arange(images)
    return np.linspace(0, images - 1, limit).round().astype(np.int64)


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
            f"be found. Give --run, the folder of its training. {OR_FOLDERS}"
        ) from problem


def _recorded(bundle: Bundle) -> str | None:
    """The fingerprint of the images that the bundle's network was trained on."""
    found = FINGERPRINT.search(bundle.manifest.provenance.data)
    return None if found is None else found[1]


@cache
def _splits(data: Data, root: Path, recorded: str | None) -> Splits:
    return splits_for(data, root, recorded=recorded)


def _spread(part: OwnImages, limit: int | None) -> OwnImages:
    return part if limit is None else part.take(spread_indices(len(part), limit))
