"""Training whose worker processes, or their images, are lost."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.faults.training_runs import fit_command, one_error, start, wait_for
from tests.training.command_line import write_folder
from training.data.splits import splits_for
from training.errors import DataError, RunError
from training.learning.batches import FolderBatches, Plan, make_batches
from training.recipe import load_recipe

ENDLESS = ("optimiser.epochs=100000",)


def test_a_lost_worker_ends_the_run_with_advice(tmp_path: Path) -> None:
    """SIGKILL of a process that decodes images: the training ends at once, and says what to do; it does not hang."""
    photos, out = write_folder(tmp_path / "photos"), tmp_path / "run"
    with start(fit_command(out, "--data", photos, "--size", 12, "--workers", 1, changes=ENDLESS)) as process:
        wait_for(process, out / "metrics.jsonl")
        (worker,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(worker), signal.SIGKILL)
        said = one_error(process)
    # What torch says of it depends on when the loss is noticed: by a signal, at the next batch, or while fetching one.
    assert "a process that decodes images is lost: " in said
    assert "DataLoader worker (pid" in said or "its batch could not be fetched" in said
    assert "fewer --workers" in said
    assert "The same command goes on from the last checkpoint" in said


class _Gone:
    """Pickled by a worker, it fails in the training process as a batch does whose worker was killed meanwhile."""

    def __reduce__(self):
        return _reset, ()


def _reset() -> None:
    raise ConnectionResetError(104, "Connection reset by peer")


class _GoneBatches(FolderBatches):
    def __init__(self) -> None:
        self.workers = 1

    def __getitem__(self, step):
        return _Gone()


def test_a_batch_that_cannot_be_fetched_gives_the_same_advice() -> None:
    """A worker that is killed between making a batch and handing it over is a lost worker, not a traceback."""
    with pytest.raises(RunError, match=r"lost: its batch could not be fetched .*reset by peer.* fewer --workers"):
        next(_GoneBatches().between(0, 1))


def test_images_that_are_deleted_during_a_training_are_kept(tmp_path: Path) -> None:
    """They were decoded when the run began: ten more epochs are trained without the files."""
    photos, out = write_folder(tmp_path / "photos"), tmp_path / "run"
    with start(fit_command(out, "--data", photos, "--size", 12, "--workers", 1, changes=ENDLESS)) as process:
        log = out / "metrics.jsonl"
        wait_for(process, log)
        for image in photos.rglob("*.*"):
            image.unlink()
        seen = len(log.read_text().splitlines())
        while len(log.read_text().splitlines()) < seen + 10:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.kill()


def test_an_image_that_is_lost_while_a_worker_reads_it_is_named(tmp_path: Path) -> None:
    """Where there is no room to keep images, one that is gone ends the training with an error that names it."""
    photos = write_folder(tmp_path / "photos")
    recipe = load_recipe("compact-cifar10", data={"folder": str(photos), "size": 12, "validation": 5, "calibration": 5})
    part = splits_for(recipe.data, tmp_path).train
    for image in photos.rglob("*.*"):
        image.unlink()
    batches = make_batches(part, recipe, Plan(0, len(part), 10), torch.device("cpu"), workers=1)
    with pytest.raises(DataError, match=r"(png|jpg) was readable when the run began, but no longer is"):
        next(batches.between(0, 1))
