"""`confgate-train`: data, fit and export from the command line."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from service.errors import BundleError
from training.cli.calibrate import calibrate
from training.cli.data import DataRoot, data_app
from training.cli.evaluate import evaluate
from training.cli.export import export
from training.cli.import_onnx import import_onnx
from training.cli.report import report
from training.cli.reproduce import reproduce
from training.errors import TrainingError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Train a classifier that knows when it does not know, and export it for `confgate serve`.\n\n"
    "Example: `confgate-train data list`, then `confgate-train fit compact-cifar10 --out runs/cifar10`",
)
app.add_typer(data_app, name="data")
app.command()(export)
app.command()(calibrate)
app.command("import-onnx")(import_onnx)
app.command()(evaluate)
app.command()(report)
app.command()(reproduce)
console = Console()


@app.command()
def fit(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, or the path of a .toml file.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; the same command takes it up again.")],
    seed: Annotated[int, typer.Option(help="Everything random follows from it.", min=0)] = 0,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a field: `--set optimiser.epochs=2`.")
    ] = None,
    data_root: DataRoot = Path("data"),
    data: Annotated[
        Path | None, typer.Option(help="Your own images: a folder with one sub-folder for each class.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Side of the network's input in pixels.", min=1)] = None,
    init: Annotated[Path | None, typer.Option(help="Start from these weights (a state dict of torch.save).")] = None,
    device: Annotated[Literal["auto", "cuda", "cpu"], typer.Option(help="Where to train.")] = "auto",
    precision: Annotated[
        Literal["auto", "fp32", "bf16"], typer.Option(help="auto: bf16 on a GPU that has it, else fp32.")
    ] = "auto",
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile the network.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode --data; the result does not depend on it.", min=0)
    ] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Time between checkpoints within an epoch.", min=0)] = 60.0,
) -> None:
    """Train a network; stopped at any moment, the same command goes on.

    Example: `confgate-train fit compact-cifar10 --out runs/cifar10`

    Your own images: `confgate-train fit compact-cifar10 --data photos --size 64 --out runs/photos`

    Two GPUs: `torchrun --nproc-per-node 2 -m training fit compact-cifar10 --out runs/cifar10`
    """
    from training.cli.fit import FitOptions, default_workers
    from training.cli.fit import fit as run_fit

    options = FitOptions(
        recipe=recipe,
        out=out,
        seed=seed,
        changes=tuple(change or ()),
        data_root=data_root,
        folder=data,
        size=size,
        init=init,
        device=device,
        precision=precision,
        compiled=compiled,
        workers=default_workers() if workers is None else workers,
        checkpoint_seconds=checkpoint_seconds,
    )
    run_fit(options, console)


@app.command()
def xor(
    out: Annotated[Path, typer.Option(help="Folder for the figure, xor.png.")],
    seed: Annotated[int, typer.Option(help="Points and weights follow from it.", min=0)] = 0,
) -> None:
    """Draw what a confidence branch learns on XOR: the paper's figure, for six budgets and four levels of noise.

    Example: `confgate-train xor --out runs/xor`
    """
    from rich.progress import Progress

    from training.paper.xor import BUDGETS, EPOCHS, NOISES, Setting, train_stack
    from training.paper.xor_figure import draw_grid

    settings = [Setting(budget, noise, seed) for budget in BUDGETS for noise in NOISES]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"training {len(settings)} networks", total=EPOCHS)
        stack = train_stack(settings, on_epoch=lambda: progress.advance(task))
    out.mkdir(parents=True, exist_ok=True)
    draw_grid(stack, out / "xor.png")
    console.print(f"wrote {out / 'xor.png'}")


def main() -> None:
    """Entry point: what the user got wrong is one message, not a traceback."""
    try:
        app()
    except (TrainingError, BundleError) as problem:
        Console(stderr=True).print(f"[red]error:[/red] {escape(str(problem))}", highlight=False, soft_wrap=True)
        sys.exit(2)
