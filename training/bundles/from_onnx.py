"""`confgate-train import-onnx`: any ONNX image classifier becomes a bundle."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import version_converter

from service.model.bundle import Bundle, Input, Provenance
from service.model.command_line import CommandLine
from service.model.session import RUNTIME_ERRORS
from training.bundles.bank import with_bank
from training.bundles.card import write_card
from training.bundles.evidence import imported_evidence
from training.bundles.made_by import how_it_was_made
from training.bundles.write import Graphs, assemble_bundle, check_new
from training.calibration.calibrate import Evidence, calibrate_graphs
from training.errors import ExportError
from training.graphs.gradient import GradientError
from training.graphs.image_input import OPSET, Layout, image_size, with_image_input
from training.graphs.perturbed import perturbed_graph
from training.graphs.run import open_graph, run_graph


@dataclass(frozen=True)
class Imported:
    """The new bundle, and notes about it."""

    bundle: Bundle
    notes: list[str]  # what was changed or left out, for the person at the terminal
    warning: str | None


def import_onnx(
    model: Path,
    target: Path,
    labels: tuple[str, ...],
    calibration: Path,
    test: Path | None,
    mean: Sequence[float],
    std: Sequence[float],
    layout: Layout,
    command: CommandLine,
    resize: Input | None = None,
    ood: Sequence[str] = (),
    data_root: Path = Path("data"),
) -> Imported:
    """Reads the graph, finds its logits, calibrates on a folder of images, and writes the bundle."""
    check_new(target)
    notes: list[str] = []
    graph = _read_classifier(model, len(labels), notes)
    height, width = image_size(graph, layout)
    rule = resize or Input(width=width, height=height, resize="stretch", interpolation="bilinear")
    shape = rule.model_copy(update={"width": width, "height": height})
    evidence = imported_evidence(calibration, test, labels, shape, list(ood), data_root)
    plain = with_image_input(graph, mean, std, layout)
    _check_batches(plain, evidence.calibration.images[:3], len(labels))
    banked = with_bank(plain, shape, evidence)
    forward, evidence = banked.forward, banked.evidence
    if banked.note is not None:
        notes.append(banked.note)
    try:
        perturbed = perturbed_graph(forward)
    except GradientError as problem:
        perturbed = None
        notes.append(f"no ODIN graph: {problem}")
    provenance = Provenance(
        git_sha="not trained here",
        recipe=f"import-onnx {model.name}",
        seed=None,
        data=_images_of(evidence, calibration, test),
        commands=(command,),
        resolved_recipe={
            "labels": list(labels),
            "mean": list(mean),
            "std": list(std),
            "layout": layout,
            **shape.model_dump(mode="json"),
        },
    )
    graphs = Graphs(forward, perturbed)
    opened = graphs.opened(shape)
    calibrated = calibrate_graphs(opened, evidence)
    notes += calibrated.notes
    bundle = assemble_bundle(
        target,
        graphs,
        opened,
        labels,
        evidence,
        calibrated,
        provenance,
        card=lambda manifest, made: write_card(
            manifest,
            evidence.name,
            f"An ONNX classifier imported from `{model.name}`.",
            how_it_was_made(
                manifest.provenance.commands,
                f"It was {manifest.provenance.data}; layout {layout}, mean {list(mean)}, std {list(std)}.",
            ),
            made.epsilon_how,
        ),
    )
    return Imported(bundle, notes, calibrated.warning)


def _images_of(evidence: Evidence, calibration: Path, test: Path | None) -> str:
    """How many images set the thresholds, and how many the figures are measured on."""
    labelled = "unlabelled" if evidence.calibration.labels is None else "labelled"
    text = f"calibrated on {len(evidence.calibration)} {labelled} images of {calibration.resolve().name}"
    if test is None or evidence.test is None:
        return text
    return f"{text}, tested on {len(evidence.test)} labelled images of {test.resolve().name}"


def _read_classifier(path: Path, classes: int, notes: list[str]) -> onnx.ModelProto:
    """The graph at opset 18 with a dynamic batch size and one output, `logits`."""
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except (OSError, DecodeError, onnx.checker.ValidationError) as problem:
        raise ExportError(f"{path} is not a readable ONNX model ({problem}).") from problem
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset != OPSET:
        try:
            model = version_converter.convert_version(model, OPSET)
        except RuntimeError as problem:
            raise ExportError(
                f"{path} is at opset {opset} and cannot be converted to {OPSET} ({problem}). Export it at {OPSET}."
            ) from problem
        notes.append(f"converted from opset {opset} to {OPSET}")
    graph = model.graph
    weights = {initializer.name for initializer in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]  # old exporters list weights as inputs
    del graph.input[:]
    graph.input.extend(inputs)
    _name_logits(graph, classes, notes)
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    del graph.value_info[:]  # shapes inferred for the old batch size
    return model


def _name_logits(graph: onnx.GraphProto, classes: int, notes: list[str]) -> None:
    """Renames the output to `logits`; a final softmax is removed, because the service applies its own."""
    if len(graph.output) != 1:
        raise ExportError(f"the graph has the outputs {[o.name for o in graph.output]}, expected the logits alone.")
    output = graph.output[0]
    last = next(node for node in graph.node if output.name in node.output)
    if last.op_type in ("Softmax", "LogSoftmax"):
        notes.append(f"took off the final {last.op_type}: the bundle holds logits")
        source = last.input[0]
        graph.node.remove(last)
        last = next(node for node in graph.node if source in node.output)
    else:
        source = output.name
    found = [d.dim_value for d in output.type.tensor_type.shape.dim]
    if len(found) != 2 or found[1] != classes:
        raise ExportError(f"the output has shape {found}, expected [N,{classes}] for {classes} labels.")
    for node in graph.node:
        node.input[:] = ["logits" if name == source else name for name in node.input]
        node.output[:] = ["logits" if name == source else name for name in node.output]
    output.name = "logits"


def _check_batches(model: onnx.ModelProto, images: np.ndarray, classes: int) -> None:
    """Rejects a graph with a fixed batch size, which fails or answers differently at batch 3."""
    try:
        session = open_graph(model)
        together, alone = run_graph(session, images, 3)["logits"], run_graph(session, images, 1)["logits"]
    except RUNTIME_ERRORS as problem:
        raise ExportError(f"ONNX Runtime cannot run the graph in batches ({problem}).") from problem
    if together.shape != (len(images), classes) or not np.allclose(together, alone, atol=1e-3):
        raise ExportError("the graph answers differently in batches. Export it with a dynamic batch size.")
