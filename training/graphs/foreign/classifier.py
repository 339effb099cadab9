"""From a file to a bundle's forward graph: rewritten step by step, then compared with what the file itself answers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, version_converter

from service.model.images import Pixels
from service.model.session import RUNTIME_ERRORS
from training.errors import ExportError
from training.graphs.foreign.batch import free_batch
from training.graphs.foreign.file import read_file
from training.graphs.foreign.front import put_image_in_front, rename
from training.graphs.foreign.image import ImageTensor, Layout, find_image
from training.graphs.foreign.original import original_answers, probe_images
from training.graphs.foreign.output import Values, choose_output, drop_unused, end_in_logits, values_of
from training.graphs.foreign.preprocessing import Preprocessing
from training.graphs.foreign.trial import first_line, open_trial, run_trial
from training.graphs.image_input import NORMALISED, OPSET, forget_traces
from training.graphs.weights import same_weights_as

PROBES = 3
# Of the largest value; a graph that computes in float16 rounds differently when its nodes are joined differently.
TOLERANCE, TOLERANCE_FLOAT16 = 1e-4, 1e-2
OLDEST_OPSET = 7  # before it, operators spread their operands by rules of their own
# Names that a bundle's graphs give to tensors of their own.
RESERVED = frozenset(
    {"image", NORMALISED, "logits", "logits_preprocessed", "features", "epsilon", "confidence_logit"}
    | {"neighbour_similarity", "neighbour_bank", "branch_input"}
)
REWRITING_ERRORS: tuple[type[Exception], ...] = (
    *RUNTIME_ERRORS,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
)

Batching = Literal["as it is", "freed", "one"]


@dataclass(frozen=True)
class Reading:
    """What the user says about a graph; None is found by itself."""

    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    layout: Layout | None = None
    size: tuple[int, int] | None = None  # height, width
    output: str | None = None

    def described(self) -> str:
        """For the card: what the user said, and what was taken for granted."""
        pixels = self.preprocessing
        said = [f"mean {list(pixels.mean)}", f"std {list(pixels.std)}", f"range {pixels.range:g}", pixels.channels]
        said += [f"layout {self.layout}"] if self.layout else []
        said += [f"output {self.output}"] if self.output else []
        return ", ".join(said)

    def resolved(self, layout: Layout) -> dict[str, Any]:
        """What was used, for bundle.json; `layout` is the one that was found."""
        pixels = self.preprocessing
        fields: dict[str, Any] = {"mean": list(pixels.mean), "std": list(pixels.std), "range": pixels.range}
        fields |= {"channels": pixels.channels, "layout": layout}
        return fields if self.output is None else fields | {"output": self.output}


@dataclass(frozen=True)
class ForeignClassifier:
    """A forward graph of a bundle: `image` uint8 [N,H,W,3] → `logits` float32 [N,K], or [1,…] for one at a time."""

    forward: onnx.ModelProto
    layout: Layout
    height: int
    width: int


@dataclass(frozen=True)
class _Wanted:
    """What every attempt at rewriting needs to know."""

    path: Path
    model: onnx.ModelProto
    image: ImageTensor
    preprocessing: Preprocessing
    output: str
    values: Values
    classes: int
    answers: NDArray[np.float64]  # the original's, of the probes
    probes: Pixels


def read_classifier(path: Path, classes: int, reading: Reading, weights: Path, notes: list[str]) -> ForeignClassifier:
    """The first way of rewriting the graph whose answers are those of the file; an error if there is none.

    Its large weights move to the folder `weights`, which must stay as long as the graph is used.
    """
    model = read_file(path, weights)
    image = find_image(model, reading.layout, reading.size, notes)
    if image.elem_type == TensorProto.UINT8 and reading.preprocessing != Preprocessing(
        channels=reading.preprocessing.channels
    ):
        raise ExportError(
            "the graph takes pixels as bytes and normalises them itself. Leave out --mean, --std, --range."
        )
    inner = reading.output if reading.output in _tensors(model) else None
    probes = probe_images(image, PROBES)
    answers = original_answers(path, inner, image, reading.preprocessing, probes)
    output = choose_output(answers, classes, reading.output)
    values = values_of(model, output, answers[output])
    opset, is_half = _opset(model), _computes_in_float16(model)
    rows = np.asarray(answers[output], np.float64).reshape(PROBES, classes)
    if not np.isfinite(rows).all():
        raise ExportError(f"{path} answers with values that are not finite. Check --mean, --std and --range.")
    wanted = _Wanted(path, model, image, reading.preprocessing, output, values, classes, rows, probes)
    forward, batching, difference = _first_that_agrees(wanted, opset, TOLERANCE_FLOAT16 if is_half else TOLERANCE)
    notes += _notes(wanted, opset, _opset(forward), batching)
    notes.append(f"answers equal those of {path.name} in ONNX Runtime: the largest difference is {difference:.1e}")
    return ForeignClassifier(forward, image.layout, image.height, image.width)


def _first_that_agrees(wanted: _Wanted, opset: int, tolerance: float) -> tuple[onnx.ModelProto, Batching, float]:
    problems: list[str] = []
    for convert, batching in _attempts(opset):
        try:
            forward = _rewritten(wanted, convert, batching)
            difference = _difference(wanted, forward, batching)
        except REWRITING_ERRORS as problem:
            problems.append(f"{batching}: {first_line(problem)}")
            continue
        if difference <= tolerance:
            return forward, batching, difference
        problems.append(f"{batching}: its answers differ by {difference:.1e}")
    if _answers_vary(wanted):
        raise ExportError(
            f"{wanted.path} answers differently each time for the same image, so no threshold holds for it. Export it "
            "in evaluation mode (net.eval() in PyTorch), without random operators."
        )
    batch = wanted.image.batch or 1
    export = "Export it with a dynamic batch size, or with one image" if batch > 1 else "Export it again"
    raise ExportError(
        f"{wanted.path} cannot be rewritten so that it answers as before ({'; '.join(dict.fromkeys(problems))}). "
        f"{export} at opset {OPSET} or later."
    )


def _answers_vary(wanted: _Wanted) -> bool:
    """Whether the file itself answers the same image differently when asked twice, as with dropout that is still on."""
    twice = np.repeat(wanted.probes[:1], 2, axis=0)
    found = original_answers(wanted.path, wanted.output, wanted.image, wanted.preprocessing, twice)
    first, second = np.asarray(found[wanted.output], np.float64)
    return not np.allclose(first, second, rtol=TOLERANCE, atol=TOLERANCE)


def _attempts(opset: int) -> Iterator[tuple[bool, Batching]]:
    """Best first: at an opset that neighbours and ODIN need, in batches, with as little changed as possible."""
    for convert in (True, False) if opset < OPSET else (False,):
        if convert or opset >= OLDEST_OPSET:
            batchings: tuple[Batching, ...] = ("as it is", "freed", "one")
            yield from ((convert, batching) for batching in batchings)


def _rewritten(wanted: _Wanted, convert: bool, batching: Batching) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(wanted.model)
    image, fixed = wanted.image, wanted.image.batch or 1
    del model.graph.value_info[:]  # shapes inferred for the old batch and size
    batch = 1 if batching == "one" else "N"
    end_in_logits(model, _out_of_the_way(model, wanted.output), wanted.values, wanted.classes, batch)
    _set_shape(model.graph.input[0], image.shape(fixed if batching == "freed" else batch))
    output = onnx.ValueInfoProto()
    output.CopyFrom(model.graph.output[0])
    if convert:
        model = version_converter.convert_version(model, OPSET)
        model.ir_version = max(model.ir_version, 8)
        model.graph.output[0].CopyFrom(output)  # the converter would write the old batch size into it
        del model.graph.value_info[:]
    put_image_in_front(model, image, wanted.preprocessing, batch)
    if batching == "freed":
        free_batch(model, fixed)
    drop_unused(model.graph)  # what the converter or a rewritten shape left behind
    forget_traces(model)
    same_weights_as(model, wanted.model)
    return model


def _difference(wanted: _Wanted, forward: onnx.ModelProto, batching: Batching) -> float:
    """The largest difference from the original's answers, alone and in a batch, relative to the largest of them."""
    session = open_trial(forward)
    largest = 0.0
    for batch in (1,) if batching == "one" else (1, PROBES):
        logits = run_trial(session, wanted.probes, batch)[0].astype(np.float64)
        if logits.shape != wanted.answers.shape:
            return float("inf")
        found = _as_original(logits, wanted.values)
        scale = max(1.0, float(np.abs(wanted.answers).max()))
        largest = max(largest, float(np.abs(found - wanted.answers).max()) / scale)
    return largest


def _as_original(logits: NDArray[np.float64], values: Values) -> NDArray[np.float64]:
    """What the original returns where our graph returns these logits."""
    if values == "logits":
        return logits
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return np.asarray(log_softmax if values == "log_softmax" else np.exp(log_softmax), np.float64)


def _notes(wanted: _Wanted, opset: int, made: int, batching: Batching) -> Iterator[str]:
    image = wanted.image
    yield f"input {image.name!r}: {image.layout}, {image.width}×{image.height}; output {wanted.output!r}"
    if wanted.values == "shares":
        yield "the output is probabilities: their logarithms serve as logits, and their energy is always 0"
    elif wanted.values != "logits":
        yield f"took off the final {wanted.values}: the bundle holds logits"
    if made != opset:
        yield f"converted from opset {opset} to {made}"
    elif opset < OPSET:
        yield f"stays at opset {opset}, because it cannot be converted to {OPSET}: export it at {OPSET} for all scores"
    if batching == "freed":
        yield f"the batch size was fixed to {image.batch or 1}, and was made dynamic"
    if batching == "one":
        yield "the graph takes one image at a time, and is served one at a time. Export it with a dynamic batch size"


def _out_of_the_way(model: onnx.ModelProto, output: str) -> str:
    """Renames tensors whose names a bundle's graphs need; returns the name of the output afterwards."""
    graph = model.graph
    given = graph.input[0]
    own = {name: f"{name}/own" for name in RESERVED if name in {given.name, *_tensors(model)}}
    rename(graph, own)
    given.name = own.get(given.name, given.name)
    return own.get(output, output)


def _tensors(model: onnx.ModelProto) -> set[str]:
    graph = model.graph
    return {name for node in graph.node for name in node.output} | {tensor.name for tensor in graph.initializer}


def _set_shape(value: onnx.ValueInfoProto, shape: list[int | str]) -> None:
    for dimension, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
        dimension.Clear()
        if isinstance(size, int):
            dimension.dim_value = size
        else:
            dimension.dim_param = size


def _opset(model: onnx.ModelProto) -> int:
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def _computes_in_float16(model: onnx.ModelProto) -> bool:
    half = TensorProto.FLOAT16
    casts = (a.i for node in model.graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to")
    return any(tensor.data_type == half for tensor in model.graph.initializer) or half in casts
