"""`confgate-train import-onnx` in this process, and its bundle's answers beside those of the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from typer.testing import CliRunner

from service.model.bundle import Bundle, load_bundle
from service.model.scores import softmax
from service.model.session import open_session
from tests.training.graphs.foreign.small_graphs import LABELS
from training.cli.main import app

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
Pixels = NDArray[np.uint8]
ToInput = Callable[[Pixels], NDArray[Any]]


def run_import(model: Path, photos: Path, out: Path, *flags: str, labels: tuple[str, ...] = LABELS) -> str:
    """What the command prints; its error is raised as the command line would show it."""
    arguments = ["import-onnx", str(model), "--labels", ",".join(labels), "--calibration", str(photos)]
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, [*arguments, "--out", str(out), *flags])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def imported(model: Path, photos: Path, out: Path, *flags: str) -> tuple[Bundle, str]:
    said = run_import(model, photos, out, *flags)
    return load_bundle(out), said


def channels_first(images: Pixels) -> NDArray[Any]:
    """As torchvision normalises."""
    return ((images / 255 - MEAN) / STD).astype(np.float32).transpose(0, 3, 1, 2)


def channels_last(images: Pixels) -> NDArray[Any]:
    return ((images / 255 - MEAN) / STD).astype(np.float32)


def images_for(bundle: Bundle, count: int = 5, seed: int = 3) -> Pixels:
    size = bundle.manifest.input
    levels = np.random.default_rng(seed).integers(20, 236, (count, 1, 1, 3))
    noise = np.random.default_rng(seed).normal(0, 30, (count, size.height, size.width, 3))
    return (levels + noise).clip(0, 255).astype(np.uint8)


def bundle_answers(bundle: Bundle, images: Pixels) -> NDArray[Any]:
    return open_session(bundle, "forward", "cpu", 1).run(images)["logits"]


def file_answers(
    model: Path, images: Pixels, to_input: ToInput = channels_first, output: str | None = None
) -> NDArray[Any]:
    """ONNX Runtime on the file itself, one image after the other: [N,K]."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    given, names = session.get_inputs()[0].name, [output] if output else None
    rows = [session.run(names, {given: row[np.newaxis]})[0].reshape(1, -1) for row in to_input(images)]
    return np.concatenate(rows).astype(np.float64)


def probabilities(logits: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(softmax(logits), np.float64)
