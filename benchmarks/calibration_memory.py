"""The most memory that import-onnx and calibrate take, for few photos and for many.

    python -m benchmarks.calibration_memory [--images N …] [--network NAME] [--data DIR]
    python -m benchmarks.calibration_memory --model FILE.onnx --labels FILE [--images N …] [--data DIR]

Without --data it writes JPEG photos of noise, 256 pixels wide, into a temporary folder; with it, it takes the photos of
DIR/CLASS. Without --model it exports a network of torchvision with fresh weights at 224 pixels. Each command is a
process of its own that says what it needed at most. The goal is 1.5 GB and three times the weights.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import training.torchvision_shim  # noqa: F401  # before torchvision

CLASSES = 10
SIDE = 224
GOAL_MB, GOAL_WEIGHTS = 1_500, 3
MEASURED = """
import atexit, pathlib, re, runpy, sys
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: print("peak kB", re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]))
sys.argv = ["confgate-train", *sys.argv[1:]]
runpy.run_module("training", run_name="__main__")
"""


def export(name: str, path: Path) -> None:
    import torchvision

    warnings.simplefilter("ignore")  # torch's exporter warns about itself
    torch.manual_seed(0)
    network = torchvision.models.get_model(name, num_classes=CLASSES).eval()
    batch = torch.export.Dim("N")
    torch.onnx.export(
        network,
        (torch.zeros(2, 3, SIDE, SIDE),),
        path,
        dynamo=True,
        verbose=False,
        external_data=False,
        opset_version=18,
        dynamic_shapes=({0: batch},),
    )


def write_photos(folder: Path, labels: list[str], images: int) -> None:
    """JPEG files of smooth noise in the colours of their class."""
    random = np.random.default_rng(0)
    for label in labels:
        (folder / label).mkdir(parents=True)
    for number in range(images):
        coarse = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((256, 256), Image.Resampling.BICUBIC)
        photo.save(folder / labels[number % len(labels)] / f"{number}.jpg")


def link_photos(source: Path, folder: Path, labels: list[str], images: int) -> None:
    """The first photos of each class in turn, as links."""
    for label in labels:
        (folder / label).mkdir(parents=True)
    of_class = [sorted(path for path in (source / label).glob("*") if path.is_file()) for label in labels]
    longest = max(map(len, of_class))
    in_turn = [path for row in range(longest) for paths in of_class for path in paths[row : row + 1]]
    if len(in_turn) < images:
        raise SystemExit(f"{source} has {len(in_turn)} photos of these classes, fewer than {images}.")
    for number, path in enumerate(in_turn[:images]):
        (folder / path.parent.name / f"{number}{path.suffix}").symlink_to(path.absolute())


def measure(*words: object) -> tuple[float, float]:
    """Peak in MB, and seconds."""
    command = [sys.executable, "-c", MEASURED, "--progress-seconds", "60", *map(str, words)]
    start = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=os.environ)
    found = re.search(r"peak kB (\d+)", done.stdout)
    if done.returncode or found is None:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}")
    return int(found[1]) / 1024, time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[200, 3_000])
    parser.add_argument("--network", default="mobilenet_v3_large", help="of torchvision, with fresh weights")
    parser.add_argument("--model", type=Path, help="an ONNX classifier instead; needs --labels")
    parser.add_argument("--labels", type=Path, help="its classes, one a line")
    parser.add_argument("--data", type=Path, help="photos in DIR/CLASS instead of noise")
    options = parser.parse_args()
    if (options.model is None) != (options.labels is None):
        parser.error("--model and --labels belong together: give both, or neither")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model, label_file = options.model, options.labels
        if model is None:
            names = [f"class{number}" for number in range(CLASSES)]
            if options.data is not None:
                names = sorted(path.name for path in options.data.iterdir() if path.is_dir())[:CLASSES]
            model, label_file = folder / f"{options.network}.onnx", folder / "labels.txt"
            export(options.network, model)
            label_file.write_text("\n".join(names))
        labels = label_file.read_text().split("\n")
        goal = GOAL_MB + GOAL_WEIGHTS * model.stat().st_size / 1e6
        print(f"{model.name}, {model.stat().st_size / 1e6:.0f} MB; goal at most {goal:,.0f} MB", flush=True)
        print(f"{'command':12} {'images':>7} {'peak MB':>9} {'goal':>6} {'seconds':>8}", flush=True)
        for images in options.images:
            photos, bundle = folder / f"photos{images}", folder / f"models{images}" / "measured" / "1"
            if options.data is None:
                write_photos(photos, labels, images)
            else:
                link_photos(options.data, photos, labels, images)
            commands = {
                "import-onnx": ["import-onnx", model, "--labels", label_file, "--calibration", photos, "--out", bundle],
                "calibrate": ["calibrate", bundle, "--data", photos],
            }
            for name, words in commands.items():
                peak, seconds = measure(*words)
                print(
                    f"{name:12} {images:7,} {peak:9,.0f} {'met' if peak <= goal else 'missed':>6} {seconds:8,.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
