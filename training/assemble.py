"""Graphs and labelled images become a bundle: score → thresholds → evaluate → write, measured on ONNX Runtime."""

import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from service.bundle import (
    Bundle,
    Default,
    Figure,
    HashedFile,
    Histogram,
    Input,
    Manifest,
    Provenance,
    Score,
    write_bundle,
)
from service.gate import Outputs, ScoreName, histogram, score_images
from service.session import open_session
from training.calibrate import CalibrationScores, policies, temperature_of
from training.data import LabelledImages
from training.errors import ExportError
from training.evaluate import as_served, in_distribution_figures, out_of_distribution_figures
from training.export import open_graph, run_graph
from training.preprocessing import ODIN_TEMPERATURE, choose_epsilon
from training.shared_weights import share_weights


@dataclass(frozen=True)
class Graphs:
    forward: onnx.ModelProto
    perturbed: onnx.ModelProto | None = None

    @property
    def has_confidence(self) -> bool:
        return "confidence_logit" in [output.name for output in self.forward.graph.output]

    @property
    def preprocessed_score(self) -> ScoreName | None:
        if self.perturbed is None:
            return None
        return "confidence_preprocessed" if self.has_confidence else "odin"


@dataclass(frozen=True)
class Evidence:
    """The images thresholds come from, and those that figures are measured on."""

    name: str
    calibration: LabelledImages
    test: LabelledImages | None
    outside: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)


def assemble_bundle(
    target: Path,
    graphs: Graphs,
    shape: Input,
    labels: tuple[str, ...],
    evidence: Evidence,
    provenance: Provenance,
    card: Callable[[Manifest], str],
) -> Bundle:
    """Writes `target` (…/NAME/VERSION) whole, or leaves nothing behind."""
    version = _version_of(target)
    session = open_graph(graphs.perturbed or graphs.forward)
    inside, truth = as_served(evidence.calibration.images, shape), evidence.calibration.labels
    epsilon = None
    if graphs.preprocessed_score is not None:
        clean = run_graph(open_graph(graphs.forward), inside)["logits"]
        epsilon = choose_epsilon(session, graphs.preprocessed_score, inside, clean.argmax(axis=1) == truth)
    calibration = run_graph(session, inside, epsilon=epsilon)
    scores = calibrated_scores(calibration, truth, graphs, epsilon)
    figures = _figures(evidence, scores, lambda images: run_graph(session, as_served(images, shape), epsilon=epsilon))
    with tempfile.TemporaryDirectory() as folder:
        files = _write_graphs(graphs, Path(folder))
        manifest = Manifest(
            name=target.parent.name,
            version=version,
            created=datetime.now(UTC).replace(microsecond=0),
            provenance=provenance,
            graphs={
                name: HashedFile.of(files[file])
                for name, file in (("forward", "model.onnx"), ("perturbed", "perturbed.onnx"))
                if file in files
            },
            external_data=tuple(HashedFile.of(files[f]) for f in files if not f.endswith(".onnx")),
            input=shape,
            labels=labels,
            temperature=temperature_of(calibration["logits"], truth),
            scores=scores,
            default=Default(score="confidence" if graphs.has_confidence else "max_softmax", policy="misclassified"),
            evaluation=tuple(figures),
        )
        contents: dict[str, Path | bytes] = {**files, "CARD.md": card(manifest).encode()}
        return write_bundle(
            target.parent.parent,
            manifest,
            contents,
            check=lambda bundle: _answers_alike(bundle, inside[0], calibration),
        )


def calibrated_scores(
    outputs: Outputs, labels: NDArray[np.int64], graphs: Graphs, epsilon: float | None
) -> dict[ScoreName, Score]:
    """Every score the graphs offer, with its reference histogram and policies from the calibration images."""
    right = outputs["logits"].argmax(axis=1) == labels
    names: list[ScoreName] = ["confidence", "max_softmax"] if graphs.has_confidence else ["max_softmax"]
    preprocessed = graphs.preprocessed_score
    if preprocessed is not None:
        names.append(preprocessed)
    scores: dict[ScoreName, Score] = {}
    for name in names:
        temperature = ODIN_TEMPERATURE if name == "odin" else None
        values = score_images(name, outputs, temperature)
        scores[name] = Score(
            epsilon=epsilon if name == preprocessed else None,
            temperature=temperature,
            reference=Histogram(counts=histogram(values)),
            policies=policies(CalibrationScores(values, right)),
        )
    return scores


def _figures(
    evidence: Evidence, scores: dict[ScoreName, Score], run: Callable[[NDArray[np.uint8]], Outputs]
) -> list[Figure]:
    if evidence.test is None:
        return []
    test = run(evidence.test.images)
    figures = in_distribution_figures(f"{evidence.name} test", test, evidence.test.labels, scores)
    for name, images in evidence.outside.items():
        figures += out_of_distribution_figures(name, test, run(images), scores)
    return figures


def _write_graphs(graphs: Graphs, folder: Path) -> dict[str, Path]:
    """The files of the graphs by name; two graphs share one file of weights."""
    files = {"model.onnx": folder / "model.onnx"}
    forward = onnx.ModelProto()
    forward.CopyFrom(graphs.forward)
    if graphs.perturbed is not None:
        perturbed = onnx.ModelProto()
        perturbed.CopyFrom(graphs.perturbed)
        weights = share_weights([forward, perturbed], "weights.bin")
        if weights:  # a network of tiny tensors keeps them in its graphs
            files["weights.bin"] = folder / "weights.bin"
            files["weights.bin"].write_bytes(weights)
        files["perturbed.onnx"] = folder / "perturbed.onnx"
        files["perturbed.onnx"].write_bytes(perturbed.SerializeToString())
    files["model.onnx"].write_bytes(forward.SerializeToString())
    return files


def _answers_alike(bundle: Bundle, image: NDArray[np.uint8], calibration: Outputs) -> None:
    """Opens the bundle through the service and compares its answers with those it was calibrated on."""
    for graph in bundle.manifest.graphs:
        answer = open_session(bundle, graph, device="cpu", max_batch=1).run(image[None])
        for name, values in answer.items():
            difference = float(np.abs(values[0] - calibration[name][0]).max())
            if not difference <= 1e-3:
                raise ExportError(
                    f"the written bundle's {name} differs by {difference:.2e} from what it was calibrated on."
                )


def _version_of(target: Path) -> int:
    if not target.name.isdecimal() or int(target.name) < 1:
        raise ExportError(f"--out is {target}, expected models/NAME/VERSION with a whole number from 1 as VERSION.")
    return int(target.name)


def git_revision() -> str:
    """The commit the code stands at, marked where files differ from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
