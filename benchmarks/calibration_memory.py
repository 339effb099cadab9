"""The most memory that import-onnx, calibrate, evaluate and export take, for few photos and for many.

    python -m benchmarks.calibration_memory [--images N …] [--network NAME] [--commands NAME …] [--data DIR]
    python -m benchmarks.calibration_memory --model FILE.onnx --labels FILE [the same flags]
    python -m benchmarks.calibration_memory --commands export --network efficientnet-lite0 [the same flags]

Without --data it writes JPEG photos of noise, 256 pixels wide, into a temporary folder; with it, it takes the photos
of DIR/CLASS. Without --model it exports a network of torchvision with fresh weights at 224 pixels. `import-onnx` and
`calibrate` get N calibration images, `evaluate` N test images; the bundle of the last two was imported with 60.
`export` gets a run of N images, most of them for calibration and test, whose network has learnt from the few others for
an epoch. Each command is a process of its own that says what it needed at most. The goal is 1.5 GB and three times the
weights.
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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import training.torchvision_shim  # noqa: F401  # before torchvision

CLASSES = 10
SIDE = 224
GOAL_MB, GOAL_WEIGHTS = 1_500, 3
COMMANDS = ["import-onnx", "calibrate", "evaluate", "export"]
FEW = 60  # calibration images of the bundle that is calibrated again or evaluated
OOD_IMAGES = 40
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
    (*_, head) = (module for module in network.modules() if isinstance(module, torch.nn.Linear))
    torch.nn.init.normal_(head.weight)  # that of ViT is 0: every image would get the same answer
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


def write_photos(folder: Path, labels: list[str], images: int, after: int = 0) -> None:
    """JPEG files of smooth noise; others than those before `after`."""
    random = np.random.default_rng(after)
    for label in labels:
        (folder / label).mkdir(parents=True)
    for number in range(images):
        coarse = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((256, 256), Image.Resampling.BICUBIC)
        photo.save(folder / labels[number % len(labels)] / f"{number}.jpg")


def link_photos(source: Path, folder: Path, labels: list[str], images: int, after: int = 0) -> None:
    """Photos of each class in turn, as links, without the first `after` of them."""
    for label in labels:
        (folder / label).mkdir(parents=True)
    of_class = [sorted(path for path in (source / label).glob("*") if path.is_file()) for label in labels]
    longest = max(map(len, of_class))
    in_turn = [path for row in range(longest) for paths in of_class for path in paths[row : row + 1]]
    if len(in_turn) < after + images:
        raise SystemExit(f"{source} has {len(in_turn)} photos of these classes, fewer than {after + images}.")
    for number, path in enumerate(in_turn[after : after + images]):
        (folder / path.parent.name / f"{number}{path.suffix}").symlink_to(path.absolute())


def measure(*words: object) -> tuple[float, float]:
    """Peak in MB, and seconds."""
    command = [sys.executable, "-c", MEASURED, "--progress-seconds", "60", *map(str, words)]
    start = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=os.environ)
    found = re.search(r"peak kB (\d+)", done.stdout)
    if done.returncode or found is None:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}")
    return int(found[1]) * 1024 / 1e6, time.monotonic() - start


@dataclass(frozen=True)
class Given:
    """What the commands are measured with."""

    folder: Path  # temporary
    labels: list[str]
    label_file: Path
    model: Path
    data: Path | None
    network: str

    def photos(self, name: str, images: int, after: int = 0) -> Path:
        place = self.folder / f"{name}{images}"
        if not place.is_dir():
            if self.data is None:
                write_photos(place, self.labels, images, after)
            else:
                link_photos(self.data, place, self.labels, images, after)
        return place

    def import_words(self, images: int) -> list[object]:
        words = ["import-onnx", self.model, "--labels", self.label_file, "--calibration", self.photos("own", images)]
        return [*words, "--out", self.bundle(images)]

    def bundle(self, images: int) -> Path:
        return self.folder / f"models{images}" / "measured" / "1"

    def imported(self, images: int) -> Path:
        if not self.bundle(images).is_dir():
            measure(*self.import_words(images))
        return self.bundle(images)

    def run_of(self, images: int) -> Path:
        """A finished run that has hardly learnt anything: nearly all of its images are for calibration and test."""
        run = self.folder / f"run{images}"
        fields = ["network.name=" + self.network, "optimiser.epochs=1", "optimiser.batch_size=8"]
        fields += ["data.validation=20", f"data.calibration={images * 6 // 10}", f"data.test={images * 3 // 10}"]
        words = ["fit", "vgg13-cifar10", "--data", self.photos("of_run", images), "--size", SIDE, "--out", run]
        measure(*words, *(word for field in fields for word in ("--set", field)))
        return run

    def command(self, name: str, images: int) -> list[object]:
        if name == "import-onnx":
            return self.import_words(images)
        if name == "calibrate":
            return ["calibrate", self.imported(FEW), "--data", self.photos("own", images)]
        if name == "evaluate":
            ood = self.folder / "ood"
            if not ood.is_dir():
                write_photos(ood, ["noise"], OOD_IMAGES, after=1)
            words = ["evaluate", self.imported(FEW), "--test", self.photos("test", images, after=FEW), "--ood", ood]
            return [*words, "--out", self.folder / f"evaluation{images}"]
        return ["export", self.run_of(images), "--out", self.folder / f"exported{images}" / "measured" / "1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[200, 3_000])
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS[:3])
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
        if label_file is None:
            names = [f"class{number}" for number in range(CLASSES)]
            if options.data is not None:
                names = sorted(path.name for path in options.data.iterdir() if path.is_dir())[:CLASSES]
            label_file = folder / "labels.txt"
            label_file.write_text("\n".join(names))
        only_export = options.commands == ["export"]
        if model is None and not only_export:
            model = folder / f"{options.network}.onnx"
            export(options.network, model)
        labels = label_file.read_text().split("\n")
        given = Given(folder, labels, label_file, model or Path(), options.data, options.network)
        print(f"{'command':12} {'images':>7} {'peak MB':>9} {'goal MB':>9} {'':>6} {'seconds':>8}", flush=True)
        for images in options.images:
            for name in options.commands:
                peak, seconds = measure(*given.command(name, images))
                weights = folder.glob(f"exported{images}/measured/1/*.bin") if name == "export" else [model]
                goal = GOAL_MB + GOAL_WEIGHTS * sum(file.stat().st_size for file in weights) / 1e6
                verdict = "met" if peak <= goal else "missed"
                print(f"{name:12} {images:7,} {peak:9,.0f} {goal:9,.0f} {verdict:>6} {seconds:8,.0f}", flush=True)


if __name__ == "__main__":
    main()
