"""The commands themselves: help with an example that parses, and errors as one message."""

import re
import shlex

import pytest
import typer
from typer.main import get_command

from tests.training.command_line import confgate_train, write_set
from training.cli.main import app


def commands(group=None, path=()):
    """Every command with its path: ("data", "list") …"""
    group = group or get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


@pytest.mark.parametrize(("path", "command"), [pytest.param(p, c, id=" ".join(p)) for p, c in commands()])
def test_every_command_shows_an_example_that_its_own_parser_takes(path, command):
    """The first example in the help of a command is a call of it, with arguments and options that exist."""
    examples = re.findall(r"`([^`]*(?:confgate-train|-m training) [^`]*)`", command.help or "")
    assert examples, f"{' '.join(path)} --help shows no example"
    for example in examples:
        words = shlex.split(re.split(r"confgate-train|-m training", example)[-1])
        assert tuple(words[: len(path)]) == path
        with typer.Context(command) as context:
            command.parse_args(context, words[len(path) :])


def test_a_mistake_is_one_message_and_exit_code_2(tmp_path):
    """A misspelt field, network or set too small for its splits is told without a traceback, before a run begins."""
    root = write_set(tmp_path)
    fit = ["fit", "compact-cifar10", "--data-root", root, "--out", tmp_path / "run"]
    small = ["--set=data.dataset=colours", "--set=data.validation=20", "--set=data.calibration=30"]
    small += ["--set=optimiser.batch_size=10"]
    for arguments, message in (
        (["--set", "optimiser.epohcs=3"], "optimiser.epohcs"),
        # Its set is not there either: the network is looked at before any image is.
        (["--set", "network.name=vgg14"], "network.name is 'vgg14', expected one of: compact"),
        (
            [*small, "--set", "network.name=mlp", "--set", "network.widths=[16]"],
            "network mlp for 12 pixels does not take",
        ),
        (["--set", "data.dataset=colours"], "150 images to divide, too few for 1000 validation, 5000 calibration"),
    ):
        done = confgate_train(*fit, *arguments, check=False)
        assert done.returncode == 2, done.stdout + done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
