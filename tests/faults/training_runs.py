"""Tiny trainings as a user starts them, for faults to happen to."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.training.command_line import COMMAND, ENVIRONMENT

TINY = (
    *(
        "network.widths=[8,8,8]",
        "optimiser.batch_size=10",
        "optimiser.learning_rate=0.1",
        "confidence.branch_hidden=[8]",
    ),
    "optimiser.epochs=6",
)
ARRAYS = ("data.dataset=colours", "data.validation=20", "data.calibration=30")


def fit_command(out: Path, *options: object, changes: tuple[str, ...] = ()) -> list[str]:
    """`fit` that writes a checkpoint after each step."""
    settings = [word for change in (*TINY, *changes) for word in ("--set", change)]
    return ["fit", "compact-cifar10", "--out", str(out), "--checkpoint-seconds", "0", *map(str, options), *settings]


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *command], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(process: subprocess.Popen[str], file: Path) -> None:
    """Waits until the training has written the file."""
    while not file.is_file():
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)


def put_in_the_way(process: subprocess.Popen[str], out: Path, put: Callable[[Path], None]) -> None:
    """Between two checkpoints, `put` makes the file that the next one is written to."""
    wait_for(process, out / "checkpoint.pt")
    while True:
        try:
            return put(out / "checkpoint.pt.partial")
        except FileExistsError:  # a checkpoint is being written
            assert process.poll() is None, process.communicate()
            time.sleep(0.0005)


def one_error(process: subprocess.Popen[str]) -> str:
    """What the training said when it ended by itself: one message, exit code 2 and no traceback."""
    _, problems = process.communicate(timeout=60)
    assert process.returncode == 2, problems
    assert problems.startswith("error: "), problems
    assert "Traceback" not in problems
    assert len(problems.splitlines()) == 1, problems
    return problems
