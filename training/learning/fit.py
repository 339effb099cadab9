"""A training from its options to its end: the recipe, the images, the run, and what is shown of it."""

import os
import shlex
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from service.model.command_line import CommandLine
from training.data.class_folders import has_test_part
from training.data.decoded import keeping_decoded
from training.data.folder import unwatched
from training.data.splits import Splits, splits_for
from training.errors import RecipeError
from training.learning.automatic import AUTO, automatic
from training.learning.head.run import FeaturesOf, HeadRun
from training.learning.loop import Run
from training.learning.run_folder import recorded_fingerprint
from training.learning.runtime.execution import DeviceChoice, Execution, Precision, choose_execution, faster_precision
from training.learning.runtime.progress import ProgressDisplay, watch_files
from training.learning.runtime.ranks import Ranks, joined, local_rank
from training.learning.runtime.scalars import Scalars
from training.networks import check_network
from training.networks.weights import completed, read_weights, weights_fields
from training.recipe import Recipe, data_fields, load_recipe

MEASURED_IN_BF16 = "compact"  # of the networks here; depthwise convolutions are several times slower in bfloat16
# For a folder without a test part. Fractions suit sets of any size. Calibration gets the largest one, because every
# threshold of the service is measured on it.
FOLDER_SHARES = {"validation": 0.1, "calibration": 0.2, "test": 0.15}


@dataclass(frozen=True)
class FitOptions:
    """The recipe, data, seed and execution that a training was asked for."""

    recipe: str
    out: Path
    seed: int
    changes: tuple[str, ...]
    data_root: Path
    folder: Path | None
    size: int | None
    init: Path | None
    weights: str | None
    device: DeviceChoice
    precision: Precision
    compiled: bool
    workers: int
    checkpoint_seconds: float
    command: CommandLine | None = None  # as it was typed
    train: Literal["head", "all"] | None = None  # None: as the recipe says


# What a training of this recipe, with so many classes and images of this side, cannot give; None if nothing.
BeforeTraining = Callable[[Recipe, int, int], str | None]


def fit(
    options: FitOptions,
    console: Console,
    before_training: BeforeTraining | None = None,
    features_of: FeaturesOf | None = None,
) -> None:
    """Trains to the end; Ctrl-C leaves the last checkpoint to go on from. `features_of` is for recipes that fit a head.

    Photos are decoded once, and kept until the command ends.
    """
    execution = choose_execution(options.device, options.precision, options.compiled, local_rank=local_rank())
    recipe = _recipe_of(options, on_cpu=execution.device.type == "cpu")
    with keeping_decoded(wholes=recipe.augment.smallest_area > 0 and recipe.optimiser.trains != "head"):
        _fit(options, recipe, execution, console, before_training, features_of)


def _fit(
    options: FitOptions,
    recipe: Recipe,
    execution: Execution,
    console: Console,
    before_training: BeforeTraining | None,
    features_of: FeaturesOf | None,
) -> None:
    # Before minutes are spent on reading images: what cannot be built, or cannot be downloaded.
    check_network(recipe.network.name, recipe.network.widths)
    if recipe.network.weights is not None:
        read_weights(recipe.network.name, recipe.network.weights)
    advise = options.precision == "auto" and recipe.network.name == MEASURED_IN_BF16
    advice = faster_precision(execution) if advise else None
    with joined(execution.device) as ranks:
        if not ranks.is_main:
            console = Console(quiet=True)
        if advice:
            console.print(advice, highlight=False)
        watch = partial(watch_files, console) if ranks.is_main else unwatched
        splits = splits_for(recipe.data, options.data_root, watch, _recorded(options))
        if before_training is not None and ranks.is_main:
            note = before_training(recipe, len(splits.label_names), splits.input.width)
            if note is not None:
                console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
        if recipe.optimiser.trains == "head":
            _fit_head(options, recipe, splits, ranks, console, features_of)
        else:
            _train(options, recipe, splits, execution, ranks, console)


def _fit_head(
    options: FitOptions,
    recipe: Recipe,
    splits: Splits,
    ranks: Ranks,
    console: Console,
    features_of: FeaturesOf | None,
) -> None:
    assert features_of is not None  # the command line gives it
    if ranks.world > 1:
        raise RecipeError(
            f"optimiser.trains=head is done by one process, not by {ranks.world}. Start it without torchrun, or train "
            f"all of the network: --train all."
        )
    run = HeadRun(
        recipe, splits, options.seed, options.out, features_of=features_of, init=options.init, command=options.command
    )
    sizes = ", ".join(f"{size:,} {name}" for name, size in splits.sizes.items())
    notes = [f"note: {note}" for note in splits.notes]
    for line in (f"{recipe.name} on {recipe.data.dataset}: {sizes}; the head alone", *notes):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    run.fit(console)
    console.print(f"next: {next_command(options, recipe)}", highlight=False, markup=False, soft_wrap=True)


def _train(
    options: FitOptions, recipe: Recipe, splits: Splits, execution: Execution, ranks: Ranks, console: Console
) -> None:
    """Apart from `fit`, so that the run is freed before the processes leave their group."""
    run = Run(
        recipe,
        splits,
        options.seed,
        options.out,
        init=options.init,
        execution=execution,
        ranks=ranks,
        workers=options.workers,
        checkpoint_seconds=options.checkpoint_seconds,
        command=options.command,
    )
    changed = run.resume()
    if changed:
        console.print(f"[yellow]warning:[/yellow] {changed}", highlight=False)
    display, scalars = ProgressDisplay(console, next_command(options, recipe)), Scalars(options.out / "tensorboard")
    try:
        with closing(display), closing(scalars):
            run.train([display, scalars])
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from the last checkpoint")
        raise  # typer ends the command with 130, which shells report for Ctrl-C


def _recorded(options: FitOptions) -> str | None:
    """The fingerprint of the data that this run was begun with, or, of a folder, the run whose weights it starts from.

    Earlier versions divided folders otherwise: the same images are divided as they were then.
    """
    own = recorded_fingerprint(options.out)
    if own is None and options.folder is not None and options.init is not None:
        return recorded_fingerprint(options.init.parent)
    return own


def _recipe_of(options: FitOptions, on_cpu: bool) -> Recipe:
    """The recipe. A folder, where one is given, replaces its data set and nothing else; `--set` is applied last."""
    data: dict[str, Any] = {}
    if options.folder is not None:
        # Not resolved: a link is a name that stays when the images move.
        data = _data_of_folder(Path(os.path.normpath(options.folder.absolute())), data_fields(options.recipe))
    if options.size is not None:
        data["size"] = options.size
    network = {} if options.weights is None else weights_fields(options.weights)
    trained = {"head": ["optimiser.trains=head"], "all": ["optimiser.trains=network"], None: []}[options.train]

    def complete(fields: dict[str, Any]) -> dict[str, Any]:
        return completed(automatic(fields, options.recipe, on_cpu))

    return load_recipe(options.recipe, [*trained, *options.changes], data, network, complete)


def _data_of_folder(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """What a folder changes in a recipe's data: the images, and shares of them that were numbers for another set."""
    data: dict[str, Any] = {"dataset": folder.name, "folder": str(folder)}
    data["resize"] = fields.get("resize", "fit_crop")  # photos are not square
    for part, share in FOLDER_SHARES.items():
        data[part] = fields[part] if isinstance(fields.get(part), float) or fields.get(part) == AUTO else share
    if has_test_part(folder):
        data["test"] = None
    return data


def next_command(options: FitOptions, recipe: Recipe) -> str:
    """The command that exports the run as the next version of its model; no version is overwritten.

    A run on a folder names its model: folders are often called alike (`photos`), or like a model that is served.
    """
    model = recipe.data.dataset if options.folder is None else options.out.resolve().name
    name = "".join(c if c.isalnum() else "-" for c in model.lower())
    taken = [int(folder.name) for folder in Path("models", name).glob("*") if folder.name.isdecimal()]
    command = ["confgate-train", "export", str(options.out), "--out", f"models/{name}/{max(taken, default=0) + 1}"]
    if options.data_root != Path("data"):
        command += ["--data-root", str(options.data_root)]
    return shlex.join(command)
