"""Several processes training one network."""

import json
import subprocess
import sys

import pytest

from tests.training.command_line import ENVIRONMENT, confgate_train, write_set


def command(root, out):
    settings = [
        *(
            "data.dataset=colours",
            "data.validation=20",
            "data.calibration=30",
            "network.name=mlp",
            "network.widths=[16]",
            "augment.early_share=0",
        ),
        *(
            "optimiser.epochs=3",
            "optimiser.batch_size=20",
            "optimiser.learning_rate=0.05",
            "confidence.branch_hidden=[8]",
        ),
    ]
    changes = [word for setting in settings for word in ("--set", setting)]
    return ["fit", "compact-cifar10", "--data-root", str(root), "--out", str(out), *changes]


def steps(out):
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "step"]


def test_two_processes_see_what_one_sees(tmp_path):
    """Two gloo ranks share each batch of one process: same losses, L_c, λ and accuracy, and one of them writes."""
    root = write_set(tmp_path / "data")
    confgate_train(*command(root, tmp_path / "one"))
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "training",
    ]
    done = subprocess.run(
        [*launcher, *command(root, tmp_path / "two")], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    typed = [json.loads((tmp_path / name / "run.json").read_text())["command"] for name in ("one", "two")]
    assert typed[0].startswith("confgate-train fit compact-cifar10 ")
    assert typed[1].startswith("torchrun --nproc-per-node 2 -m training fit compact-cifar10 ")
    one, two = steps(tmp_path / "one"), steps(tmp_path / "two")
    assert len(one) == 15
    assert [line["step"] for line in two] == [line["step"] for line in one]  # each step once: rank 0 alone writes
    for ours, theirs in zip(one, two, strict=True):
        for figure in ("loss", "confidence_loss", "confidence_weight"):
            assert theirs[figure] == pytest.approx(ours[figure], abs=1e-6)
        assert theirs["accuracy"] == ours["accuracy"]
    assert done.stdout.count("done after 15 steps") == 1
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two")]
    assert results[0]["validation_accuracy"] == results[1]["validation_accuracy"]
