"""`confgate-train fit` as a user runs it: killed and taken up again, on arrays and on a folder of images."""

import json
import signal
import subprocess
import time

import pytest
import torch

from tests.training.command_line import COMMAND, ENVIRONMENT, confgate_train, write_folder, write_set
from training.networks import build_network

TINY = [
    *("--set", "network.widths=[8,8,8]", "--set", "optimiser.batch_size=10", "--set", "optimiser.learning_rate=0.1"),
    *("--set", "confidence.branch_hidden=[8]", "--checkpoint-seconds", "0"),
]
EPOCHS = 6


def array_command(root, out):
    data = ["--set", "data.dataset=colours", "--set", "data.validation=20", "--set", "data.calibration=30"]
    return [
        "fit",
        "compact-cifar10",
        "--data-root",
        root,
        "--out",
        out,
        *data,
        *TINY,
        "--set",
        f"optimiser.epochs={EPOCHS}",
    ]


def folder_command(folder, out, workers, init):
    options = ["--size", 12, "--workers", workers, "--init", init, "--set", "augment.smallest_area=0.5"]
    return [
        "fit",
        "compact-cifar10",
        "--data",
        folder,
        "--out",
        out,
        *options,
        *TINY,
        "--set",
        f"optimiser.epochs={EPOCHS}",
    ]


def records(out, kind):
    return [r for r in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if r["kind"] == kind]


def start_and_kill(command, out, after_step):
    """SIGKILL once metrics.jsonl shows this step; the run must not have come to its end."""
    process = subprocess.Popen([*COMMAND, *map(str, command)], env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    log = out / "metrics.jsonl"
    try:
        while process.poll() is None and not (log.is_file() and f'"step": {after_step},' in log.read_text()):
            time.sleep(0.002)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL, "the run ended before it was killed"
    assert not (out / "result.json").exists()


def without_clock(lines):
    return [{k: v for k, v in line.items() if k not in ("images_per_second", "seconds_left")} for line in lines]


def assert_same_run(first, second):
    """Bit-identical weights, averages and λ, and the same story in metrics.jsonl."""
    one, other = (torch.load(out / "checkpoint.pt", weights_only=True) for out in (first, second))
    for part in ("network", "averaged"):
        assert one[part].keys() == other[part].keys()
        assert all(torch.equal(one[part][name], other[part][name]) for name in one[part])
    for before, after in zip(one["optimiser"]["state"].values(), other["optimiser"]["state"].values(), strict=True):
        assert torch.equal(before["momentum_buffer"], after["momentum_buffer"])
    assert one["confidence_weight"] == other["confidence_weight"]
    assert records(first, "epoch") == records(second, "epoch")
    assert without_clock(records(first, "step")) == without_clock(records(second, "step"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A finished run on arrays: (data root, run folder, what it printed)."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    root, out = write_set(folder / "data"), folder / "run"
    return root, out, confgate_train(*array_command(root, out)).stdout


def test_killed_twice_it_ends_with_the_same_weights(uninterrupted, tmp_path):
    """SIGKILL in the middle of two epochs, the same command again: weights, averages, λ and figures are identical."""
    root, finished, _ = uninterrupted
    out = tmp_path / "run"
    start_and_kill(array_command(root, out), out, after_step=4)
    start_and_kill(array_command(root, out), out, after_step=25)
    resumed = confgate_train(*array_command(root, out))
    assert "goes on from step" in resumed.stdout
    assert_same_run(finished, out)


def test_a_second_process_keeps_out_of_a_run(uninterrupted, tmp_path):
    """While one process trains in a folder, another that is given it stops at once and says so; the first goes on."""
    root, finished, _ = uninterrupted
    out = tmp_path / "run"
    with subprocess.Popen(
        [*COMMAND, *map(str, array_command(root, out))], env=ENVIRONMENT, stdout=subprocess.DEVNULL
    ) as first:
        while not (out / "run.json").is_file() and first.poll() is None:
            time.sleep(0.002)
        first.send_signal(signal.SIGSTOP)
        second = confgate_train(*array_command(root, out), check=False)
        first.send_signal(signal.SIGCONT)
        assert second.returncode == 2
        assert f"another process is training in {out}" in " ".join(second.stderr.split())
        assert first.wait() == 0
    assert_same_run(finished, out)


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(uninterrupted, tmp_path):
    """SIGINT in the middle of a run is no traceback: one line, the exit code of shells, and no result."""
    root, _, _ = uninterrupted
    out = tmp_path / "run"
    command = [*array_command(root, out), "--set", "optimiser.epochs=1000"]
    with subprocess.Popen(
        [*COMMAND, *map(str, command)], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (out / "metrics.jsonl").is_file() and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        printed, problems = process.communicate()
    assert process.returncode == 130
    assert "stopped; the same command goes on from the last checkpoint" in printed
    assert problems == ""
    assert not (out / "result.json").exists()


def test_what_a_run_says_and_writes(uninterrupted):
    """The exit summary has accuracy, L_c, λ, warnings and the next command; files hold the splits and all steps."""
    root, out, printed = uninterrupted
    result = json.loads((out / "result.json").read_text())
    assert f"validation accuracy {result['validation_accuracy']:.2%} (n=20)" in printed
    assert f"L_c {result['confidence_loss']:.3f} (β 0.3), λ {result['confidence_weight']:.3f}" in printed
    assert f"next: confgate-train export {out} --out models/colours/1 --data-root {root}" in printed
    for warning in result["warnings"][-5:]:
        assert f"warning: {warning}" in printed
    epochs, steps = records(out, "epoch"), records(out, "step")
    assert [line["step"] for line in steps] == list(range(1, 10 * EPOCHS + 1))
    assert epochs[-1]["validation_accuracy"] == result["validation_accuracy"]
    assert epochs[2]["confidence_loss"] == pytest.approx(sum(s["confidence_loss"] for s in steps[20:30]) / 10)
    assert epochs[2]["train_wrong"] == 100 - round(sum(s["accuracy"] for s in steps[20:30]) * 10)
    run = json.loads((out / "run.json").read_text())
    assert run["splits"]["sizes"] == {"train": 100, "validation": 20, "calibration": 30, "test": 30}
    assert (run["image_size"], run["label_names"]) == (12, ["0", "1", "2"])
    assert len(list((out / "tensorboard").glob("events.*"))) == 1


def test_tensorboard_shows_the_curves(uninterrupted):
    """The scalars are those of metrics.jsonl, readable by TensorBoard's own loader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, out, _ = uninterrupted
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert losses == [(line["step"], pytest.approx(line["loss"], rel=1e-6)) for line in records(out, "step")]
    assert {"confidence/L_c", "confidence/lambda", "confidence/spread", "epoch/validation_accuracy"} <= set(
        events.Tags()["scalars"]
    )


def test_the_baseline_trains_without_the_branch(uninterrupted, tmp_path):
    """`confidence.enabled=false` gives a network without the branch, and nothing is said about confidence."""
    root, _, _ = uninterrupted
    out = tmp_path / "run"
    done = confgate_train(*array_command(root, out), "--set", "confidence.enabled=false", "--set", "optimiser.epochs=2")
    names = torch.load(out / "checkpoint.pt", weights_only=True)["network"]
    assert not [name for name in names if name.startswith("branch")]
    assert "L_c" not in done.stdout
    assert "warning" not in done.stdout


def test_a_folder_gives_the_same_weights_with_any_workers_and_after_a_kill(tmp_path):
    """No workers uninterrupted, two workers killed on the way: the same weights; and `--init` says what it took."""
    folder = write_folder(tmp_path / "photos")
    weights = build_network("compact", 5, 12, (8, 8, 8)).state_dict()
    torch.save(weights | {"extra": torch.zeros(1)}, tmp_path / "weights.pt")
    alone, together = tmp_path / "alone", tmp_path / "together"
    printed = confgate_train(*folder_command(folder, alone, 0, tmp_path / "weights.pt")).stdout
    assert "weights.pt: " in printed
    assert "1 skipped for their shape: head.weight: [3, 8] here, [5, 8] in the file" in printed
    assert "not in the file, stay fresh: branch.0.weight" in printed
    assert "1 in the file, not in this network: extra" in printed
    start_and_kill(folder_command(folder, together, 2, tmp_path / "weights.pt"), together, after_step=5)
    confgate_train(*folder_command(folder, together, 2, tmp_path / "weights.pt"))
    assert_same_run(alone, together)
    run = json.loads((alone / "run.json").read_text())
    assert run["label_names"] == ["blue", "green", "red"]
    assert run["recipe"]["data"]["dataset"] == "photos"
    assert sum(run["splits"]["sizes"].values()) == 60
