"""Bring your own ONNX classifier: it becomes a bundle that the service can open, or a clear refusal."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from service.model.bundle import load_bundle
from service.model.scores import softmax
from service.model.session import open_session
from training.bundles.figure_text import own_test_of
from training.bundles.first_screen import first_screen

LABELS = ("dark", "bright", "red")
SIDE = 12


class BrightnessNet(torch.nn.Module):
    """Three logits from the mean colour; `layout` and `softmax` as foreign models have them."""

    def __init__(self, layout: str, ends_in_softmax: bool) -> None:
        super().__init__()
        self.layout, self.ends_in_softmax = layout, ends_in_softmax
        self.head = torch.nn.Linear(3, 3)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[-1.0, -1, -1], [1, 1, 1], [2, -1, -1]]))
            self.head.bias.zero_()

    def forward(self, x):
        logits = self.head(torch.relu(x).mean(dim=(2, 3) if self.layout == "nchw" else (1, 2)))
        return torch.softmax(logits, 1) if self.ends_in_softmax else logits


def write_model(path: Path, layout: str = "nchw", ends_in_softmax: bool = False) -> None:
    shape = (2, 3, SIDE, SIDE) if layout == "nchw" else (2, SIDE, SIDE, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            BrightnessNet(layout, ends_in_softmax).eval(),
            (torch.zeros(shape),),
            path,
            dynamo=True,
            verbose=False,
            external_data=False,
            opset_version=18,
            dynamic_shapes=({0: torch.export.Dim("N")},),
        )


def forget_names(path: Path) -> None:
    """Nodes need no names, and what writes graphs by hand gives them none."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, path)


def write_photos(folder: Path, seed: int = 0) -> None:
    """Eighty noisy images a class, some of them hard, at a size that is not the network's."""
    rng = np.random.default_rng(seed)
    colours = {"dark": (60, 60, 60), "bright": (170, 170, 170), "red": (170, 80, 80)}
    for label in LABELS:
        (folder / label).mkdir(parents=True)
        for i in range(80):
            base = np.asarray(colours[label]) + rng.normal(0, 60)
            pixels = (base + rng.normal(0, 40, (20, 17, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{i}.png")


def run_import(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "training", "import-onnx", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder)
    return folder


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> Path:
    """Photos to test on."""
    folder = tmp_path_factory.mktemp("others")
    write_photos(folder, seed=1)
    return folder


@pytest.mark.parametrize(("layout", "ends_in_softmax"), [("nchw", False), ("nhwc", True)])
def test_imported_model_answers_as_the_original(tmp_path, photos, others, layout, ends_in_softmax):
    """The bundle's softmax is the foreign model's, whatever its layout, with or without a softmax or names of nodes."""
    write_model(tmp_path / "model.onnx", layout, ends_in_softmax)
    if layout == "nhwc":
        forget_names(tmp_path / "model.onnx")
    target = tmp_path / "models" / "brightness" / "3"
    done = run_import(
        *(str(tmp_path / "model.onnx"), "--labels", ",".join(LABELS), "--calibration", str(photos)),
        *("--test", str(others), "--out", str(target), "--layout", layout),
        *("--mean", "0.5", "0.5", "0.5", "--std", "0.25", "0.25", "0.25"),
    )
    assert done.returncode == 0, done.stderr
    bundle = load_bundle(target)
    assert "\n".join(first_screen(bundle.manifest)) in done.stdout
    assert "## Limits" not in done.stdout  # the first screen, not the whole card
    assert "next: confgate serve --models " in done.stdout
    assert own_test_of(bundle.manifest) == f"{others.name} test"  # and not after the calibration folder
    assert f"Accuracy on {others.name} test with no gate: " in (target / "CARD.md").read_text()
    assert set(bundle.manifest.scores) == {
        *("max_softmax", "energy", "max_logit", "neighbours", "typicality", "certainty", "odin"),
    }
    assert set(bundle.manifest.scores["typicality"].typicality.components) == {"energy", "neighbours"}
    assert (bundle.manifest.default.score, bundle.manifest.default.policy) == (None, "balanced")
    image = np.random.default_rng(5).integers(0, 256, (4, SIDE, SIDE, 3), dtype=np.uint8)
    answer = softmax(open_session(bundle, "forward", "cpu").run(image)["logits"])
    x = torch.from_numpy((image / 255 - 0.5) / 0.25).float()
    original = BrightnessNet(layout, True).eval()(x.permute(0, 3, 1, 2) if layout == "nchw" else x)
    np.testing.assert_allclose(answer, original.detach().numpy(), atol=1e-5)


def test_refusals_name_what_is_wrong(tmp_path, photos):
    """No model, too many labels, a folder that is no label: each is refused in one sentence."""
    write_model(tmp_path / "model.onnx")
    (tmp_path / "text.onnx").write_text("not a model")
    common = ("--calibration", str(photos), "--out", str(tmp_path / "models" / "m" / "1"))
    cases = (
        ((str(tmp_path / "text.onnx"), "--labels", "a,b,c", *common), "is not an ONNX model"),
        ((str(tmp_path / "model.onnx"), "--labels", "dark,bright", *common), "the graph has 3 classes"),
        (
            (str(tmp_path / "model.onnx"), "--labels", "dark,bright,redder", *common),
            "are no label: 'red' (did",
        ),
    )
    for arguments, sentence in cases:
        done = run_import(*arguments)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "models").exists()


def test_an_operator_without_a_derivative_leaves_out_odin(tmp_path, photos):
    """Where the gradient has no rule the bundle is written without the ODIN graph, and the operator is named."""
    write_model(tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    relu.op_type = "Sinh"  # no classifier has one, so no rule exists
    onnx.save(model, tmp_path / "model.onnx")
    target = tmp_path / "models" / "odd" / "1"
    done = run_import(
        *(str(tmp_path / "model.onnx"), "--labels", ",".join(LABELS)),
        *("--calibration", str(photos), "--out", str(target)),
    )
    assert done.returncode == 0, done.stderr
    assert "no input preprocessing, and no score odin (ODIN)" in done.stdout
    assert "Sinh" in done.stdout
    assert "odin" not in load_bundle(target).manifest.scores
