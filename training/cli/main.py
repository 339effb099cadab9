"""`confgate-train`: the application that holds all commands, and its entry point."""

import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from service.errors import BundleError
from training.cli.calibrate import calibrate
from training.cli.data import data_app
from training.cli.evaluate import evaluate
from training.cli.export import export
from training.cli.fit import fit
from training.cli.import_onnx import import_onnx
from training.cli.report import report
from training.cli.reproduce import reproduce
from training.cli.xor import xor
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
app.command()(fit)
app.command()(xor)


def main() -> None:
    """Entry point. A user's mistake is shown as one message, without a traceback."""
    try:
        app()
    except (TrainingError, BundleError) as problem:
        _fail(str(problem))
    except OSError as problem:  # a file that cannot be read or written: no command looks at each one beforehand
        _fail(_explained(problem, sys.argv[1:]))


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(2)


def _explained(problem: OSError, words: list[str]) -> str:
    """What the system said, with the option whose path it happened under."""
    reason = problem.strerror or str(problem)
    if problem.filename is None:
        return f"{reason}. Free space, or allow reading and writing where the options point."
    file = Path(os.fsdecode(problem.filename)).absolute()
    flag = next((flag for flag, path in _paths(words) if file == path or path in file.parents), None)
    where = "" if flag is None else f", under {flag}"
    return (
        f"{file}{where}: {reason}. Expected a file or folder that can be read, or a place with space that can be "
        f"written to. Allow it, or give {flag or 'the option that leads there'} another path."
    )


def _paths(words: list[str]) -> Iterator[tuple[str, Path]]:
    """Every word that may be a path, with the option before it."""
    for before, word in pairwise(["", *words]):
        flag, equals, value = word.partition("=")
        if flag.startswith("--") and equals:
            yield flag, Path(value).absolute()
        elif not word.startswith("--"):
            yield before if before.startswith("--") else f"the argument {word}", Path(word).absolute()
