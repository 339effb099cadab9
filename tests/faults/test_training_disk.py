"""Training whose checkpoints meet a kill, a full disk, or weights that are no longer numbers."""

import fcntl
import json
import os
import select
import signal
from pathlib import Path

import pytest
import torch

from tests.faults.training_runs import ARRAYS, TINY, fit_command, one_error, put_in_the_way, start
from tests.training.command_line import confgate_train, write_set
from training.data.splits import splits_for
from training.errors import RecipeError, RunError
from training.learning.loop import Run
from training.recipe import load_recipe


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("data"))


def checkpoint(out):
    return torch.load(out / "checkpoint.pt", weights_only=True)


def test_killed_while_it_writes_it_resumes_from_the_last_whole_checkpoint(data, tmp_path):
    """SIGKILL after a few bytes of a checkpoint: the one before is whole, and the same command finishes from it."""
    out = tmp_path / "run"
    command = fit_command(out, "--data-root", data, changes=ARRAYS)
    # A small pipe in place of the file: the process stands still in the middle of its write.
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
    with start(command) as process:
        put_in_the_way(process, out, lambda partial: os.link(tmp_path / "pipe", partial))
        assert select.select([pipe], [], [], 60)[0]
        begun = os.read(pipe, 1000)
        process.kill()
        process.communicate()
    os.close(pipe)
    assert process.returncode == -signal.SIGKILL
    (out / "checkpoint.pt.partial").unlink()
    (out / "checkpoint.pt.partial").write_bytes(begun)  # what a disk would hold
    step = checkpoint(out)["step"]
    resumed = confgate_train(*command)
    assert f"goes on from step {step} of 60" in resumed.stdout
    assert json.loads((out / "result.json").read_text())["steps"] == 60
    assert not list(out.glob("*.partial"))


def test_a_full_disk_leaves_the_checkpoint_before(data, tmp_path):
    """No space for a checkpoint: one message says so and what to do, and the one before is whole."""
    out = tmp_path / "run"
    with start(fit_command(out, "--data-root", data, changes=(*ARRAYS, "optimiser.epochs=1000"))) as process:
        put_in_the_way(process, out, lambda partial: partial.symlink_to("/dev/full"))
        said = one_error(process)
    assert f"{out}/checkpoint.pt cannot be written (No space left on device)" in said
    assert "Free space" in said
    assert "the same command then goes on from it" in said
    assert checkpoint(out)["step"] >= 1
    assert not list(out.glob("*.partial"))


def run_for(data: Path, out: Path, *changes: str) -> Run:
    recipe = load_recipe("compact-cifar10", [*ARRAYS, *TINY, *changes])
    run = Run(recipe, splits_for(recipe.data, data), 0, out, checkpoint_seconds=0)
    run.resume()
    return run


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json.partial"])
def test_a_full_disk_is_named_whatever_is_written(data, tmp_path, name):
    """A log or a result that finds no space ends the run with the same advice."""
    run = run_for(data, tmp_path, "optimiser.epochs=1")
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"cannot be written \(No space left on device\)"):
        run.train()


def test_a_folder_that_cannot_be_made_is_named(data, tmp_path):
    """A file where the run's folder should be is one message."""
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file/run cannot be written \(Not a directory\)"):
        run_for(data, tmp_path / "file" / "run")


def test_a_damaged_record_is_named(data, tmp_path):
    """A run.json that is cut off is one message that says what to delete."""
    run_for(data, tmp_path)
    (tmp_path / "run.json").write_text('{"recipe": {')
    with pytest.raises(RunError, match=r"run\.json is no JSON: it was damaged\. Delete the folder"):
        run_for(data, tmp_path)


def test_weights_that_are_no_numbers_do_not_replace_a_good_checkpoint(data, tmp_path):
    """The rate rises from 0 to beyond what floats hold: the run ends with advice, and its last checkpoint is finite."""
    run = run_for(data, tmp_path, "optimiser.learning_rate=1e38", "optimiser.schedule.start=0")
    with pytest.raises(RecipeError, match=r"training has diverged.*--set optimiser\.learning_rate=5e\+37 --out"):
        run.train()
    state = checkpoint(tmp_path)
    assert state["step"] >= 1
    assert all(torch.isfinite(value).all() for value in state["network"].values())
