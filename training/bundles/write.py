"""A bundle on disk: its graphs, manifest, figures and card, written as a whole or not at all."""

import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from service.model.bundle import (
    Bundle,
    Default,
    Figure,
    GraphName,
    HashedFile,
    Input,
    Manifest,
    Provenance,
    target_problem,
    write_bundle,
)
from service.model.scores import Outputs
from service.model.session import open_session
from training.bundles.figures import in_distribution_figures, out_of_distribution_figures
from training.calibration.calibrate import Calibrated, Evidence
from training.calibration.open_graphs import OpenGraphs
from training.data.seen import Hashes, pack
from training.errors import ExportError
from training.graphs.image_views import as_served
from training.graphs.weights import WEIGHTS, share_weights, weights_folder

TRAINING_IMAGES = "training_images.bin"  # hashes: see training.data.seen


@dataclass(frozen=True)
class Graphs:
    """A network's graphs in memory."""

    forward: onnx.ModelProto
    perturbed: onnx.ModelProto | None = None

    def opened(self, shape: Input) -> OpenGraphs:
        return OpenGraphs.of(self.forward, self.perturbed, shape)


# The text of CARD.md for a manifest and its calibration.
Card = Callable[[Manifest, Calibrated], str]


def assemble_bundle(
    target: Path,
    graphs: Graphs,
    opened: OpenGraphs,
    labels: tuple[str, ...],
    evidence: Evidence,
    calibrated: Calibrated,
    provenance: Provenance,
    card: Card,
    default: Default | None = None,
    trained_on: Hashes | None = None,
) -> Bundle:
    """Writes `target` (…/NAME/VERSION) as a whole, or nothing; `trained_on` are hashes of its training images."""
    version = version_of(target)
    with tempfile.TemporaryDirectory() as folder:
        files = write_graphs(graphs, Path(folder))
        if trained_on is not None:
            files[TRAINING_IMAGES] = Path(folder) / TRAINING_IMAGES
            files[TRAINING_IMAGES].write_bytes(pack(trained_on))
        manifest = Manifest(
            schema_version=2,
            name=target.parent.name,
            version=version,
            created=datetime.now(UTC).replace(microsecond=0),
            provenance=provenance,
            **described(files),
            input=opened.shape,
            max_batch=opened.fixed_batch,
            labels=labels,
            temperature=calibrated.temperature,
            scores=calibrated.scores,
            pairs=calibrated.pairs,
            default=default or calibrated.default,
            evaluation=tuple(figures_of(opened, evidence, calibrated)),
        )
        first = evidence.calibration.images[:1]
        return publish(target, manifest, files, card(manifest, calibrated), first, opened)


def publish(
    target: Path,
    manifest: Manifest,
    files: dict[str, Path],
    card: str,
    first: NDArray[np.uint8],
    opened: OpenGraphs,
) -> Bundle:
    """Writes the bundle; before it appears, its answer for an image is compared with that of the calibrated graphs."""
    preprocessed = manifest.preprocessed_score
    outputs = opened.run(first, None if preprocessed is None else manifest.scores[preprocessed].epsilon)
    contents: dict[str, Path | bytes] = {**files, "CARD.md": card.encode()}
    return write_bundle(
        target.parent.parent, manifest, contents, check=lambda bundle: _answers_alike(bundle, first, outputs)
    )


def figures_of(opened: OpenGraphs, evidence: Evidence, calibrated: Calibrated) -> list[Figure]:
    """Every figure of the evaluation, measured on test images alone."""
    if evidence.test is None:
        return []
    test = opened.run(evidence.test.images, calibrated.epsilon, "scoring test images")
    figures = in_distribution_figures(f"{evidence.tested} test", test, evidence.test.labels, calibrated)
    for name, images in evidence.ood.items():
        ood = opened.run(images.test, calibrated.epsilon, f"scoring {name}")
        figures += out_of_distribution_figures(name, test, ood, evidence.test.labels, calibrated)
    return figures


def described(files: Mapping[str, Path]) -> dict[str, Any]:
    """What the manifest says of its files."""
    names: dict[str, GraphName] = {"model.onnx": "forward", "perturbed.onnx": "perturbed"}
    return {
        "graphs": {names[file]: HashedFile.of(path) for file, path in files.items() if file in names},
        "external_data": tuple(
            HashedFile.of(path) for file, path in files.items() if file not in names and file != TRAINING_IMAGES
        ),
        **({"training_images": HashedFile.of(files[TRAINING_IMAGES])} if TRAINING_IMAGES in files else {}),
    }


def write_graphs(graphs: Graphs, folder: Path) -> dict[str, Path]:
    """The files of the graphs by name; two graphs share one file of weights."""
    files = {"model.onnx": folder / "model.onnx"}
    forward = onnx.ModelProto()
    forward.CopyFrom(graphs.forward)
    if graphs.perturbed is not None:
        perturbed = onnx.ModelProto()
        perturbed.CopyFrom(graphs.perturbed)
        if share_weights([forward, perturbed], folder / WEIGHTS):  # small tensors stay in the graphs
            files[WEIGHTS] = folder / WEIGHTS
        files["perturbed.onnx"] = folder / "perturbed.onnx"
        files["perturbed.onnx"].write_bytes(perturbed.SerializeToString())
    elif weights_folder(forward) is not None and share_weights([forward], folder / WEIGHTS):
        files[WEIGHTS] = folder / WEIGHTS
    files["model.onnx"].write_bytes(forward.SerializeToString())
    return files


def _answers_alike(bundle: Bundle, image: NDArray[np.uint8], calibration: Outputs) -> None:
    """Opens the bundle with the service's code and compares its answers with those it was calibrated on."""
    for graph in bundle.manifest.graphs:
        served = as_served(image, bundle.manifest.input)[:]
        answer = open_session(bundle, graph, device="cpu", max_batch=1).run(served)
        for name, values in answer.items():
            difference = float(np.abs(values[0] - calibration[name][0]).max())
            if not difference <= 1e-3:
                raise ExportError(
                    f"the written bundle's {name} differs by {difference:.2e} from what it was calibrated on."
                )


def version_of(target: Path) -> int:
    """VERSION of models/NAME/VERSION, which `check_new` has checked."""
    return int(target.name)


def check_new(target: Path) -> None:
    """Rejects a target that cannot be written, before an hour of work for it."""
    problem = target_problem(target)
    if problem is not None:
        raise ExportError(f"--out is {target}, {problem}")


def git_revision() -> str:
    """The commit of this code, marked if files differ from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
