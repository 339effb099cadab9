"""What `evaluate` and `report` measure: a bundle, or a finished run, which is exported into --out first."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from service.model.command_line import command_line
from training.graphs.progress import counting_images

LONGEST_NAME = 40


@dataclass(frozen=True)
class MeasuredBundle:
    """A bundle on disk, and the run that it was exported from here."""

    bundle: Path
    run: Path | None = None


def measured_bundle(given: Path, out: Path, data_root: Path, data: Path | None, console: Console) -> MeasuredBundle:
    """The bundle itself, or that of a run: OUT/exported/RUN/1, which the same command uses again.

    Its name has a digest of the weights: a run that was trained further is exported again.
    """
    if (given / "bundle.json").is_file() or not (given / "run.json").is_file():
        return MeasuredBundle(given)  # what is no bundle is an error where it is opened
    from training.bundles.from_run import make_bundle
    from training.calibration.policies import USUAL

    record, checkpoint = (given / "run.json").read_bytes(), given / "checkpoint.pt"
    weights = checkpoint.read_bytes() if checkpoint.is_file() else b""
    digest = hashlib.sha256(record + weights).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9_-]", "-", given.resolve().name).strip("-_")[:LONGEST_NAME]
    target = out / "exported" / f"{name or 'run'}-{digest}" / "1"
    if not (target / "bundle.json").is_file():
        moved = [] if data is None else ["--data", data]
        words = ["confgate-train", "export", given, "--out", target, "--data-root", data_root, *moved]
        with counting_images(console, f"exporting {given}"):
            make_bundle(given, target, data_root, [], USUAL, command_line(words), data=data)
        console.print(
            f"exported {given} to {target}, with the thresholds of `confgate-train export` without options; for others "
            f"export it yourself and give the bundle",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return MeasuredBundle(target, given)
