"""Memory and progress of commands that run graphs over many images."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.training.command_line import COMMAND, ENVIRONMENT, write_folder

CHANNELS, SIDE = 512, 32  # every feature map of an image takes 2 MB, of which two are needed at a time
LABELS = ("blue", "green", "red")
IMAGES = 180
# In batches of 250, as small networks have them, it needs 704 MB, and in batches that fit 485 MB.
PEAK_MB = 600
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


@dataclass(frozen=True)
class Import:
    """What one import of large feature maps printed, and the most memory that it had at one time."""

    stdout: str
    lines: list[str]
    peak_mb: float


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Import:
    """The process says itself how much it had: a parent's figure would count what pytest holds."""
    folder = tmp_path_factory.mktemp("large")
    write_classifier(folder / "large.onnx")
    photos = write_folder(folder / "photos", IMAGES // len(LABELS), LABELS)
    words = ["import-onnx", folder / "large.onnx", "--labels", ",".join(LABELS), "--calibration", photos]
    words += ["--out", folder / "models" / "large" / "1"]
    command = [COMMAND[0], "-c", MEASURED, "--progress-seconds", "0", *map(str, words)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"peak kB (\d+)", done.stdout)
    assert found, done.stdout
    return Import(done.stdout, done.stderr.splitlines(), int(found[1]) / 1024)


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="peak memory is read from /proc")
def test_memory_does_not_hold_all_images_at_once(imported: Import) -> None:
    """180 images that take megabytes inside the graph, and 1,000 made from them, are processed in batches that fit."""
    assert imported.peak_mb < PEAK_MB


def test_without_a_terminal_lines_say_how_far_it_is(imported: Import) -> None:
    """A log shows what is being done, how many images of how many, how fast and how long it still takes."""
    what = "importing, calibrating and measuring"
    for step in ("reading features for the bank", "scoring calibration images", "scoring OOD proxies"):
        assert any(
            re.fullmatch(rf"{what}, {step}: [\d,]+ of [\d,]+ images, [\d.,e+]+ images/s, [\d,]+ s left", line)
            for line in imported.lines
        ), imported.lines
    assert any(f"scoring calibration images: {IMAGES} of {IMAGES} images" in line for line in imported.lines)
    assert re.fullmatch(rf"{what}: done, [\d,]+ images in all passes, [\d,]+ s", imported.lines[-1])
    assert "images/s" not in imported.stdout
