"""The command line as a user runs it, and small real data for it."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

from training.cli.main import main

REPOSITORY = Path(__file__).parents[2]
# One thread each: tests share their machine, and a result must not depend on how many cores it has.
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": str(REPOSITORY)}
COMMAND = [sys.executable, "-W", "error", "-m", "training"]


def confgate_train(*arguments: object, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `confgate-train …`; with `check` a failure is a failure of the test, with its output."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], env=ENVIRONMENT | environment, capture_output=True, text=True, check=False
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@dataclass(frozen=True)
class Done:
    """How a command in this process ended."""

    returncode: int
    stdout: str
    stderr: str


def in_this_process(*arguments, check=True):
    """The command in this process: starting one for each call would take longer than the tests."""
    told, problems = io.StringIO(), io.StringIO()
    typed = patch.object(sys, "argv", ["confgate-train", *map(str, arguments)])
    with typed, redirect_stdout(told), redirect_stderr(problems), pytest.raises(SystemExit) as ended:
        main()
    done = Done(ended.value.code or 0, told.getvalue(), problems.getvalue())
    assert not check or done.returncode == 0, done
    return done


def coloured(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Noisy images whose class is their brightest channel: a network learns that in a few steps."""
    images = np.random.default_rng(seed).integers(0, 120, (len(labels), size, size, 3))
    images[np.arange(len(labels)), :, :, labels] += 60
    return images.astype(np.uint8)


def write_set(root: Path, name: str = "colours", train: int = 150, test: int = 30, size: int = 12) -> Path:
    """NAME.npz with three classes."""
    root.mkdir(parents=True, exist_ok=True)
    y_train, y_test = np.arange(train) % 3, np.arange(test) % 3
    arrays = {"x_train": coloured(y_train, size, 1), "y_train": y_train}
    np.savez(root / f"{name}.npz", **arrays, x_test=coloured(y_test, size, 2), y_test=y_test)
    return root


def write_folder(root: Path, each: int = 20, classes: tuple[str, ...] = ("blue", "green", "red")) -> Path:
    """ROOT/CLASS/N.png and .jpg of different sizes."""
    random = np.random.default_rng(3)
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(each):
            image = Image.fromarray(coloured(np.asarray([label % 3]), 24, 100 * label + number)[0])
            width, height = random.integers(14, 40, 2)
            suffix = "jpg" if number % 2 else "png"
            image.resize((int(width), int(height))).save(root / name / f"{number}.{suffix}")
    return root
