"""The whole demonstration in a few seconds: a real service, a real Prometheus, real images."""

import json
import os
import pty
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from demo.errors import DemoError
from demo.faster_rules import PAIR_ALERTS
from demo.images import foreign_images
from demo.processes import gate_of
from demo.watching import tolerance
from tests.conftest import ROOT, Service, make_bundle
from tests.deploy.shipped import need
from tests.pair_bundles import make_pair_bundle

LABELS = json.loads((ROOT / "tests" / "fixtures" / "labels.json").read_text())["cifar10"]
COMMAND = [sys.executable, "-m", "demo", "--data-root", "no-such-folder", "--share", "0.9"]


def run_demo(out: Path, *flags: str, **how: Any) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "--out", str(out), *flags]
    return subprocess.run(command, cwd=ROOT, text=True, timeout=240, **{"capture_output": True, **how})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def with_prometheus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    need("prometheus")
    out = tmp_path_factory.mktemp("with") / "out"
    done = run_demo(out, "--duration", "10", "--speed", "150")
    assert done.returncode == 0, done.stderr
    return out, done.stdout


@pytest.fixture(scope="module")
def with_a_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """With Prometheus and a tiny model whose default is a pair."""
    need("prometheus")
    folder = tmp_path_factory.mktemp("pair")
    make_pair_bundle(folder / "models", "cifar10")
    done = run_demo(folder / "out", "--duration", "8", "--speed", "200", "--models", str(folder / "models"))
    assert done.returncode == 0, done.stderr
    return folder / "out", done.stdout


@pytest.fixture(scope="module")
def without_prometheus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """On a terminal of 100 × 45 characters, with noise, and no program on the PATH."""
    out = tmp_path_factory.mktemp("without") / "out"
    ours, theirs = pty.openpty()
    said: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(ours, said))
    reader.start()
    env = {**os.environ, "PATH": str(out.parent), "COLUMNS": "100", "LINES": "45", "TERM": "xterm-256color"}
    flags = ("--duration", "6", "--speed", "300", "--foreign", "uniform")
    done = run_demo(out, *flags, env=env, capture_output=False, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    reader.join(60)
    os.close(ours)
    assert done.returncode == 0, done.stderr
    return out, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", b"".join(said).decode())


def _read_all(terminal: int, said: list[bytes]) -> None:
    try:
        while chunk := os.read(terminal, 65536):
            said.append(chunk)
    except OSError:
        pass  # a terminal reports this way that its other side is closed


@pytest.mark.parametrize("kind", ["with_prometheus", "without_prometheus"])
def test_the_accuracy_told_is_that_of_the_recorded_answers(kind: str, request: pytest.FixtureRequest) -> None:
    """Summary and screen have the accuracies that follow from answers.jsonl; an answer to an OOD image is wrong."""
    out, said = request.getfixturevalue(kind)
    answers = lines(out / "answers.jsonl")
    for answer in answers:
        assert answer["truth"] == (LABELS[answer["index"]] if answer["source"] == "cifar10" else None)
    right = [answer for answer in answers if answer["truth"] == answer["class_id"]]
    accepted = [answer for answer in answers if answer["accepted"]]
    right_and_accepted = [answer for answer in right if answer["accepted"]]
    assert 0 < len(accepted) < len(answers)
    told = json.loads((out / "summary.json").read_text())["whole_run"]
    assert (told["images"], told["accepted"]) == (len(answers), len(accepted))
    assert told["accuracy_without_gate"] == len(right) / len(answers)
    assert told["accuracy_of_accepted"] == len(right_and_accepted) / len(accepted)
    assert f"({len(right_and_accepted):,} of {len(accepted):,})" in said
    assert f"{len(right) / len(answers) * 100:.2f} % with no gate ({len(right):,} of {len(answers):,})" in said
    assert "sent again and again" in said


@pytest.mark.parametrize("kind", ["with_prometheus", "without_prometheus", "with_a_pair"])
def test_a_run_ends_with_a_picture(kind: str, request: pytest.FixtureRequest) -> None:
    """demo.png is a picture with many colours, small enough to send around."""
    out, said = request.getfixturevalue(kind)
    with Image.open(out / "demo.png") as picture:
        assert picture.format == "PNG"
        assert picture.width >= 800
        assert len(picture.convert("RGB").getcolors()) > 100
    assert (out / "demo.png").stat().st_size < 200_000
    assert str(out / "demo.png") in said.replace("\r\n", "")


def test_prometheus_fires_the_shipped_alert(with_prometheus: tuple[Path, str]) -> None:
    """The alert is silent before OOD images are sent, then pending, then firing, as Prometheus reports it."""
    out, said = with_prometheus
    summary = json.loads((out / "summary.json").read_text())
    assert summary["watched_by"] == "Prometheus"
    alert = summary["alerts"][0]  # of a pair, the one on unfamiliar images
    assert 2.5 < alert["pending_at"] < alert["firing_at"]
    assert f"alert {alert['name']}: firing" in said


@pytest.mark.parametrize(("kind", "calibration_images"), [("with_prometheus", 5000), ("with_a_pair", 144)])
def test_the_band_of_the_demonstration_is_that_of_the_rules(
    kind: str, calibration_images: int, request: pytest.FixtureRequest
) -> None:
    """The bands computed without Prometheus equal what Prometheus records from the shipped rules, for each reason."""
    out, _ = request.getfixturevalue(kind)
    readings = [reading for reading in lines(out / "readings.jsonl") if reading["shares"]]
    assert len(readings) > 5
    for share in (share for reading in readings for share in reading["shares"].values()):
        ours = tolerance(share["rate"], share["images"], share["expected"], calibration_images)
        assert share["tolerance"] == pytest.approx(ours, rel=1e-9)


def test_both_reasons_of_a_pair_are_watched_and_told(with_a_pair: tuple[Path, str]) -> None:
    """A run with a pair shows both shares and both alerts, and ends with what an operator would have seen."""
    out, said = with_a_pair
    answers, summary = lines(out / "answers.jsonl"), json.loads((out / "summary.json").read_text())
    reasons = Counter(answer["reason"] for answer in answers)
    assert {answer["reason"] is None for answer in answers if answer["accepted"]} <= {True}
    told = summary["whole_run"]
    assert (told["unfamiliar"], told["unsure"]) == (reasons["unfamiliar"], reasons["unsure"])
    assert reasons["unsure"] > 0
    assert summary["expected_refusals"] == {"unfamiliar": 0.05, "unsure": 0.1}
    assert {reason for reading in lines(out / "readings.jsonl") for reason in reading["shares"]} == set(PAIR_ALERTS)
    assert "5.0 % as unfamiliar and 10.0 % as unsure" in said
    # Nearly all of these images are grey to the tiny model, which is then unsure of them.
    fired = {alert["name"]: alert["firing_at"] for alert in summary["alerts"]}
    assert fired["ConfgateUnsureRateOff"] is not None
    assert "ConfgateRejectionRateOff" not in said
    seen = said.partition("what an operator would have seen")[2]
    assert re.search(r"ConfgateUnsureRateOff firing: \d+\.\d % unsure, expected 10\.0 %", seen)
    assert "ConfgateUnfamiliarRateOff" in seen


def test_without_prometheus_it_says_so(without_prometheus: tuple[Path, str]) -> None:
    """Without Prometheus the run says so, says who judges the alert, and shows the rest live."""
    out, said = without_prometheus
    assert "There is no `prometheus` on the PATH" in said
    assert not (out / "prometheus").exists()
    assert "the demonstration itself" in json.loads((out / "summary.json").read_text())["watched_by"]
    assert "confgate demo · cifar10" in said
    assert "now sending" in said


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    """A port in use ends the run with one message that says what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_demo(tmp_path / "out", "--port", str(port))
    assert done.returncode == 2
    assert "port is taken" in done.stderr
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_foreign_images_are_refused(tmp_path: Path) -> None:
    """A missing set, and the in-distribution one, are rejected with a list of what is available."""
    done = run_demo(tmp_path / "out", "--foreign", "no-such-set")
    assert done.returncode == 2
    assert "fashion_mnist, uniform, gaussian" in done.stderr
    with pytest.raises(DemoError, match=r"is what the model knows\. There are: fashion_mnist, uniform, gaussian"):
        foreign_images("cifar10", tmp_path, seed=0)


def test_a_pair_is_watched_under_its_label_in_prometheus(models: Path) -> None:
    """A default that is a pair is named as the metrics name it, with what it refuses for both reasons together."""
    make_bundle(models)
    make_pair_bundle(models, "pairs")
    running = Service(models).wait_until_serving()
    pair, single = gate_of(running.url, "pairs"), gate_of(running.url, "colours")
    assert (pair.score, pair.policy, pair.calibration_images) == ("pair", "balanced", 144)
    assert pair.expected_rejection_rate == pytest.approx(0.15)
    assert pair.compared == "typicality and certainty"
    assert [(one.reason, one.expected, one.alert) for one in pair.watched] == [
        ("unfamiliar", 0.05, "ConfgateUnfamiliarRateOff"),
        ("unsure", 0.1, "ConfgateUnsureRateOff"),
    ]
    assert [(one.reason, one.expected, one.alert) for one in single.watched] == [
        ("unfamiliar", 0.1, "ConfgateRejectionRateOff")
    ]
    assert (single.score, single.compared, single.expected_rejection_rate) == ("confidence", "confidence", 0.1)
    assert running.stop() == 0


def test_the_demonstration_needs_no_torch() -> None:
    """The demonstration imports neither torch nor training, so that a newcomer installs little."""
    program = "import json, sys, demo.__main__; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "torchvision", "onnx", "training"} & set(json.loads(done.stdout))
