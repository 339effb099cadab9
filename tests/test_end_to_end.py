"""From images on disk to an answer over HTTP, every step through the command a user types."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from service.model.bundle import load_bundle
from tests.conftest import Service
from training.data.importers.named_sets import save_arrays
from training.graphs.parity import by_autograd
from training.graphs.run import open_graph, run_graph
from training.learning.finished_run import read_run

SIDE = 16
RECIPE_CHANGES = {
    "data.dataset": "stripes",
    "data.validation": "100",
    "data.calibration": "400",
    "network.widths": "[8,16,16]",
    "optimiser.epochs": "3",
    "optimiser.batch_size": "50",
    "optimiser.learning_rate": "0.1",
    "optimiser.average_decay": "0.9",
}


def stripes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes of noisy stripes; one label in ten is wrong, so that there is something to doubt."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    y, x = np.mgrid[:SIDE, :SIDE]
    patterns = np.stack([x % 4 < 2, y % 4 < 2, (x + y) % 4 < 2]) * 120 + 60
    images = patterns[labels][..., None] + rng.normal(0, 40, (count, SIDE, SIDE, 3))
    mislabelled = rng.random(count) < 0.1
    labels = np.where(mislabelled, rng.integers(0, 3, count), labels)
    return images.clip(0, 255).astype(np.uint8), labels.astype(np.int64)


def run_training(*arguments: str) -> subprocess.CompletedProcess[str]:
    # A network this small is faster on one thread than on several that wait for each other.
    command = [sys.executable, "-m", "training", *arguments]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def confgate_train(*arguments: str) -> str:
    done = run_training(*arguments)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A models folder made by fit and export from a data set on disk."""
    folder = tmp_path_factory.mktemp("end_to_end")
    (x_train, y_train), (x_test, y_test) = stripes(2_000, 0), stripes(500, 1)
    save_arrays(folder / "data", "stripes", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    noise = np.random.default_rng(2).integers(0, 256, (1_200, 24, 24, 3), dtype=np.uint8)
    save_arrays(folder / "data", "static", x=noise)
    changes = [part for key, value in RECIPE_CHANGES.items() for part in ("--set", f"{key}={value}")]
    root = ("--data-root", str(folder / "data"))
    confgate_train("fit", "compact-cifar10", "--out", str(folder / "run"), *changes, *root)
    target = folder / "models" / "stripes" / "1"
    confgate_train("export", str(folder / "run"), "--out", str(target), "--ood", "static", *root)
    # Version 2 has an ε that shows: the one that calibration finds for a network this small may be 0.
    second = Path(shutil.copytree(target, target.with_name("2"))) / "bundle.json"
    manifest = json.loads(second.read_text()) | {"version": 2}
    manifest["scores"]["confidence_preprocessed"]["epsilon"] = 0.05
    second.write_text(json.dumps(manifest))
    return folder


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def answers(trained) -> Iterator[httpx.Client]:
    """A running service over what was just trained."""
    running = Service(trained / "models").wait_until_serving()
    with httpx.Client(base_url=running.url, timeout=30) as client:
        yield client
    assert running.stop() == 0


def test_trained_model_answers_over_http_as_onnx_runtime_does(trained, answers):
    """What the service says of test images is what the exported graph says, and is right more often than chance."""
    images, labels = stripes(60, 3)
    files = [("files", (f"{i}.png", png(image), "image/png")) for i, image in enumerate(images)]
    response = answers.post("/v1/predict", files=files[:30], params={"version": "1"})
    second = answers.post("/v1/predict", files=files[30:], params={"version": "1"})
    assert (response.status_code, second.status_code) == (200, 200), response.text + second.text
    predictions = response.json()["predictions"] + second.json()["predictions"]
    direct = run_graph(open_graph(trained / "models" / "stripes" / "1" / "model.onnx"), images)
    manifest = json.loads((trained / "models" / "stripes" / "1" / "bundle.json").read_text())
    pair = manifest["pairs"]["policies"]["balanced"]
    assert [p["class_id"] for p in predictions] == direct["logits"].argmax(axis=1).tolist()
    shown = [p["confidence"] for p in predictions]
    np.testing.assert_allclose(shown, 1 / (1 + np.exp(-direct["confidence_logit"].astype(float))), atol=1e-5)
    scores = load_bundle(trained / "models" / "stripes" / "1").manifest.scores
    familiar = scores["typicality"].of_images("typicality", direct) > pair.get("familiarity", -np.inf)
    certain = scores["certainty"].of_images("certainty", direct) > pair.get("certainty", -np.inf)
    assert [p["in_distribution"] for p in predictions] == familiar.tolist()
    assert [p["accepted"] for p in predictions] == (familiar & certain).tolist()
    assert np.mean([p["class_id"] for p in predictions] == labels) > 0.6


def test_card_and_bundle_tell_the_same_figures(trained):
    """The card shows the accuracy that bundle.json holds, measured on all 500 test images."""
    folder = trained / "models" / "stripes" / "1"
    figures = json.loads((folder / "bundle.json").read_text())["evaluation"]
    (accuracy,) = [figure for figure in figures if figure["metric"] == "accuracy"]
    assert accuracy["n"] == 500
    assert f"**{accuracy['value']:.2%}** (n = 500)" in (folder / "CARD.md").read_text()


def test_finished_run_is_not_trained_again(trained):
    """The same fit command on a finished run changes nothing and says that it is done."""
    before = (trained / "run" / "checkpoint.pt").read_bytes()
    changes = [part for key, value in RECIPE_CHANGES.items() for part in ("--set", f"{key}={value}")]
    arguments = ("compact-cifar10", "--out", str(trained / "run"), "--data-root", str(trained / "data"))
    confgate_train("fit", *arguments, *changes)
    assert (trained / "run" / "checkpoint.pt").read_bytes() == before


def test_existing_version_is_never_overwritten(trained):
    """Exporting onto a version that exists is refused by name, and the bundle stays as it was."""
    target = trained / "models" / "stripes" / "1"
    before = (target / "bundle.json").read_bytes()
    done = run_training("export", str(trained / "run"), "--out", str(target), "--data-root", str(trained / "data"))
    assert done.returncode == 2
    assert "never edited" in done.stderr
    assert "Traceback" not in done.stderr
    assert (target / "bundle.json").read_bytes() == before


def test_preprocessed_confidence_over_http_is_torch_autograds(trained, answers):
    """With preprocess=true the answer is what torch's own float64 gradient gives, within 1e-4, gated on its own δ."""
    run = read_run(trained / "run", trained / "data")
    manifest = json.loads((trained / "models" / "stripes" / "2" / "bundle.json").read_text())
    score = manifest["scores"]["confidence_preprocessed"]
    images, _ = stripes(20, 4)
    files = [("files", (f"{i}.png", png(image), "image/png")) for i, image in enumerate(images)]
    query = {"preprocess": "true", "version": "2"}
    predictions = answers.post("/v1/predict", files=files, params=query).json()["predictions"]
    network, std = run.network.double(), torch.tensor(run.std, dtype=torch.float64)
    x = ((torch.from_numpy(images).double() / 255 - torch.tensor(run.mean)) / std).permute(0, 3, 1, 2)
    z = by_autograd(network, x, score["epsilon"])["confidence_logit_preprocessed"]
    shown = [p["confidence_preprocessed"] for p in predictions]
    np.testing.assert_allclose(shown, 1 / (1 + np.exp(-z)), atol=1e-4)
    assert np.abs(np.subtract(shown, [p["confidence"] for p in predictions])).max() > 1e-3  # ε moves what is compared
    threshold = score["policies"]["misclassified"]["threshold"]
    assert [p["in_distribution"] for p in predictions] == (z > threshold).tolist()
    assert {p["score"] for p in predictions} == {"confidence_preprocessed"}


def test_a_bundle_is_calibrated_again_on_the_split_it_was_trained_beside(trained):
    """With nothing but the data root, `calibrate` finds the split, shows what `export` chose, and writes version 3."""
    first, third = (trained / "models" / "stripes" / version for version in ("1", "3"))
    root = ("--data-root", str(trained / "data"))
    text = confgate_train("calibrate", str(first), "--ood", "static", "--out", str(third), *root)
    exported, again = (json.loads((folder / "bundle.json").read_text()) for folder in (first, third))
    assert again["graphs"] == exported["graphs"]
    assert again["scores"] == exported["scores"]  # the same images and the same code give the same thresholds
    assert again["evaluation"] == exported["evaluation"]
    policies = exported["scores"]["confidence"]["policies"]
    assert {"misclassified", "ood_holdout", "tpr95"} <= set(policies)
    assert f"{policies['ood_holdout']['expected_rejection_rate']:.2%}" in text
    assert "to catch OOD images, use" in text
    # Other images under the same name might have been trained on.
    images, labels = stripes(2_000, 9)
    save_arrays(trained / "other", "stripes", x_train=images, y_train=labels, x_test=images, y_test=labels)
    done = run_training("calibrate", str(first), "--data-root", str(trained / "other"))
    assert done.returncode == 2
    assert "might have been trained on" in done.stderr
