"""Memory and progress of commands that run graphs over many images."""

import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.training.command_line import COMMAND, ENVIRONMENT, confgate_train, write_folder

CHANNELS, SIDE = 512, 32  # every feature map of an image takes 2 MB, and its perturbed graph holds several
LABELS = ("blue", "green", "red")
FEW, MANY = 60, 180
# More than the difference between two runs, and a quarter of what 120 more images take in one batch.
GROWTH_MB = 100
MEASURED = """
import atexit, pathlib, re, runpy, sys
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: print("peak kB", re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]))
sys.argv = ["confgate-train", *sys.argv[1:]]
runpy.run_module("training", run_name="__main__")
"""


def write_classifier(path: Path) -> None:
    """Its class is the brightest channel, by way of large feature maps."""
    random = np.random.default_rng(0)
    mixed = random.normal(size=(CHANNELS, 3)).astype(np.float32)
    back = (0.4 * np.linalg.pinv(np.maximum(mixed, 0)).T).astype(np.float32)  # [channels, 3]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image_in", "mixed"], ["map"], "map"),
            helper.make_node("Relu", ["map"], ["active"], "active"),
            helper.make_node("GlobalAveragePool", ["active"], ["mean"], "mean"),
            helper.make_node("Flatten", ["mean"], ["features"], "features"),
            helper.make_node("Gemm", ["features", "back"], ["scores"], "scores", alpha=40.0),
        ],
        "large feature maps",
        [value("image_in", TensorProto.FLOAT, ["N", 3, SIDE, SIDE])],
        [value("scores", TensorProto.FLOAT, ["N", 3])],
        [
            numpy_helper.from_array(mixed.reshape(CHANNELS, 3, 1, 1), "mixed"),
            numpy_helper.from_array(np.ascontiguousarray(back[:, ::-1]), "back"),  # blue, green, red
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.onnx"
    write_classifier(path)
    return path


def arguments(classifier: Path, folder: Path, images: int) -> list[object]:
    photos = write_folder(folder / f"photos{images}", images // len(LABELS), LABELS)
    return [
        *("import-onnx", classifier, "--labels", ",".join(LABELS), "--calibration", photos),
        *("--out", folder / f"models{images}" / "large" / "1"),
    ]


def peak_mb(*words: object) -> float:
    """The most memory that a command had at one time, as it says itself: a parent's would count what pytest holds."""
    command = [COMMAND[0], "-c", MEASURED, *map(str, words)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"peak kB (\d+)", done.stdout)
    assert found, done.stdout
    return int(found[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="peak memory is read from /proc")
def test_memory_does_not_grow_with_the_number_of_images(classifier, tmp_path):
    """Three times as many images need no more memory, where each takes megabytes inside the graph."""
    few, many = (peak_mb(*arguments(classifier, tmp_path, images)) for images in (FEW, MANY))
    assert many - few < GROWTH_MB


def test_without_a_terminal_lines_say_how_far_it_is(classifier, tmp_path):
    """A log shows what is being done, how many images of how many, how fast and how long it still takes."""
    words = arguments(classifier, tmp_path, FEW)
    done = confgate_train("--progress-seconds", 0, *words)
    lines = done.stderr.splitlines()
    what = "importing, calibrating and measuring"
    for step in ("reading features for the bank", "scoring calibration images", "scoring OOD proxies"):
        assert any(
            re.fullmatch(rf"{what}, {step}: [\d,]+ of [\d,]+ images, [\d.,e+]+ images/s, [\d,]+ s left", line)
            for line in lines
        ), done.stderr
    assert any(f"scoring calibration images: {FEW} of {FEW} images" in line for line in lines)
    assert re.fullmatch(rf"{what}: done, [\d,]+ images in all passes, [\d,]+ s", lines[-1])
    assert "images/s" not in done.stdout
