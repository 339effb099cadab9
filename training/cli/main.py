"""`confgate-train`: the application that holds all commands, and its entry point."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from service.errors import BundleError
from training.cli.calibrate import calibrate
from training.cli.channel_values import ChannelValuesCommand
from training.cli.data import data_app
from training.cli.evaluate import evaluate
from training.cli.explain import explained
from training.cli.export import export
from training.cli.fit import fit
from training.cli.import_onnx import import_onnx
from training.cli.learn_confidence import learn_confidence
from training.cli.recipes import recipes
from training.cli.report import report
from training.cli.reproduce import reproduce
from training.cli.xor import xor
from training.errors import TrainingError
from training.graphs.progress import EVERY_SECONDS, say_every

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Train a classifier that knows when it does not know, and export it for `confgate serve`.\n\n"
    "Example: `confgate-train data list`, then `confgate-train fit compact-cifar10 --out runs/cifar10`",
)


# They read the images of a folder several times. `fit` keeps what its recipe needs.
READ_IMAGES_OFTEN = frozenset({"import-onnx", "learn-confidence", "calibrate", "export", "evaluate", "report"})


@app.callback()
def options(
    context: typer.Context,
    progress_seconds: Annotated[
        float,
        typer.Option(
            help="Without a terminal: seconds between two lines on stderr that say how many images are done.", min=0
        ),
    ] = EVERY_SECONDS,
) -> None:
    say_every(progress_seconds)
    if context.invoked_subcommand in READ_IMAGES_OFTEN:
        from training.data.decoded import keeping_decoded  # late, to keep --help fast

        context.with_resource(keeping_decoded())


app.add_typer(data_app, name="data")
app.command()(export)
app.command()(calibrate)
app.command("import-onnx", cls=ChannelValuesCommand)(import_onnx)
app.command("learn-confidence", cls=ChannelValuesCommand)(learn_confidence)
app.command()(evaluate)
app.command()(report)
app.command()(reproduce)
app.command()(fit)
app.command()(recipes)
app.command()(xor)


def main() -> None:
    """Entry point. A user's mistake is shown as one message, without a traceback."""
    try:
        app()
    except (TrainingError, BundleError, OSError) as problem:  # OSError: a file that cannot be read or written
        message = explained(problem, sys.argv[1:])
        Console(stderr=True).print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
        sys.exit(2)
