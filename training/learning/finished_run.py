"""Reads a finished training run: its recipe, its weights and the data it was trained on."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from training.data.splits import Splits, moved_to, splits_for
from training.errors import ExportError, RecipeError
from training.graphs.torch_layers import add_branch_of
from training.learning.optimiser import average_of
from training.learning.pretrained import commands_of
from training.networks import Classifier, build_network
from training.recipe import Recipe, parse_recipe


@dataclass(frozen=True)
class TrainedRun:
    """A finished run, ready to be exported."""

    recipe: Recipe
    seed: int
    network: Classifier
    splits: Splits
    mean: list[float]
    std: list[float]
    image_size: int
    made_by: tuple[str, ...]  # the commands that led to it, its own last
    branch_left_out: bool = False  # trained with a branch that is not in `network`


def read_run(folder: Path, data_root: Path, data: Path | None = None) -> TrainedRun:
    """The run under `folder`. Fails if it is unfinished, or if `data_root` holds other data than it was trained on.

    `data` is where the folder of images that it was trained on is now.
    """
    record = folder / "run.json"
    if (folder / "bundle.json").is_file():
        raise RecipeError(
            f"{folder} is a bundle, expected a training run: the --out of 'confgate-train fit'. To give a bundle new "
            f"thresholds: confgate-train calibrate {folder} --out models/NAME/VERSION."
        )
    if not record.is_file() or not (folder / "checkpoint.pt").is_file():
        raise RecipeError(f"{folder} holds no training run. Expected a folder written by 'confgate-train fit … --out'.")
    identity: dict[str, Any] = json.loads(record.read_text())
    recipe = parse_recipe(identity["recipe"])
    recipe = recipe.model_copy(update={"data": moved_to(recipe.data, data)})
    state = torch.load(folder / "checkpoint.pt", map_location="cpu", weights_only=True)
    return TrainedRun(
        recipe=recipe,
        seed=identity["seed"],
        network=_trained_network(folder, state, identity, recipe),
        splits=_same_splits(recipe, identity, data_root),
        mean=identity["mean"],
        std=identity["std"],
        image_size=identity["image_size"],
        made_by=commands_of(identity, state),
    )


def without_branch(run: TrainedRun) -> TrainedRun:
    """The classifier alone, as a baseline. Fails if the branch has influenced how the classifier was trained."""
    settings = run.recipe.confidence
    if run.network.branch is None:
        raise ExportError("--without-branch: this run has no confidence branch; export it as it is.")
    if settings.shapes_features or settings.hints_for == "network" or run.recipe.optimiser.trains == "branch":
        raise ExportError(
            "--without-branch is for runs whose branch left the classifier alone (confidence.shapes_features=false and "
            "confidence.hints_for=branch, trained together): for this run it would not be the baseline. Train the "
            "recipe that ends in -baseline."
        )
    run.network.branch = None
    return replace(run, branch_left_out=True)


def _trained_network(folder: Path, state: dict[str, Any], identity: dict[str, Any], recipe: Recipe) -> Classifier:
    """The network to serve: the moving average of the weights where one was kept."""
    total_steps = _total_steps(identity, recipe)
    if state["step"] < total_steps:
        raise RecipeError(
            f"{folder} is not finished: step {state['step']} of {total_steps}. Run the same 'fit' command again."
        )
    network = build_network(
        recipe.network.name, len(identity["label_names"]), identity["image_size"], recipe.network.widths
    )
    add_branch_of(network, recipe.confidence, identity["image_size"])
    if "served" in state:
        network.load_state_dict(state["served"])
        return network.eval()
    averaged = None if state["averaged"] is None else average_of(network, recipe.optimiser.average_decay)
    if averaged is None:
        network.load_state_dict(state["network"])
        return network.eval()
    averaged.load_state_dict(state["averaged"])
    assert isinstance(averaged.module, Classifier)
    return averaged.module.eval()


def _total_steps(identity: dict[str, Any], recipe: Recipe) -> int:
    """A head is fitted in one step."""
    if recipe.optimiser.trains == "head":
        return 1
    images: int = identity["splits"]["sizes"]["train"]
    return images // recipe.optimiser.batch_size * recipe.optimiser.epochs


def _same_splits(recipe: Recipe, identity: dict[str, Any], data_root: Path) -> Splits:
    trained_on = identity["splits"]["fingerprint"]
    splits = splits_for(recipe.data, data_root, recorded=trained_on)
    if splits.fingerprint != trained_on:
        raise RecipeError(
            f"the data under {recipe.data.folder or data_root} has fingerprint {splits.fingerprint}, the run was "
            f"trained on {trained_on}: calibration images might have been trained on. Restore the data, or train again."
        )
    return splits
