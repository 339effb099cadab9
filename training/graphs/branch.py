"""A confidence branch inside a forward graph: fully connected layers from what `layers` shows to `confidence_logit`.

shown, widths = with_branch_input(forward)     # computed once for all images; then the branch is fitted
scored = add_branch(forward, branch)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from scipy.special import erf

from training.errors import ExportError
from training.graphs.append import Appender, has_output, without_output
from training.graphs.features import LOGITS, own_copy
from training.graphs.layers import append_branch_input

CONFIDENCE = "confidence_logit"
# Beyond it, x·scale and offset·scale are both so large beside their difference that float32 would lose four digits.
LARGEST_SHIFT = 1000.0

Weights = NDArray[np.float32]
Rows = NDArray[np.floating]


@dataclass(frozen=True)
class Branch:
    """Reads (x − offset)·scale; between its layers is the activation, and the last one has a single output."""

    offset: Weights  # [W]
    scale: Weights  # [W]
    layers: tuple[tuple[Weights, Weights], ...]  # weight [in, out] and bias [out]
    activation: Literal["relu", "gelu"] = "relu"

    def __post_init__(self) -> None:
        width = len(self.offset)
        if self.offset.shape != (width,) or self.scale.shape != (width,) or not self.layers:
            raise ExportError(
                f"a branch has offset {self.offset.shape}, scale {self.scale.shape} and {len(self.layers)} layers; "
                f"expected one offset and one scale for each input, and at least one layer."
            )
        for place, (weight, bias) in enumerate(self.layers):
            out = 1 if place == len(self.layers) - 1 else len(bias)
            if weight.shape != (width, out) or bias.shape != (out,):
                raise ExportError(
                    f"layer {place} of the branch has weight {list(weight.shape)} and bias {list(bias.shape)}, "
                    f"expected {[width, out]} and {[out]}."
                )
            width = out
        arrays = (self.offset, self.scale, *(array for layer in self.layers for array in layer))
        if not all(np.isfinite(array).all() for array in arrays):
            raise ExportError("the branch holds NaN or infinite values. Look at what it was fitted on.")

    @property
    def width(self) -> int:
        """How many values it reads of each image."""
        return len(self.offset)

    def confidence_logit(self, branch_input: Rows) -> NDArray[np.float64]:
        """What the graph computes [N], by numpy in float64."""
        x = (branch_input.astype(np.float64) - self.offset) * self.scale
        for weight, bias in self.layers[:-1]:
            x = x @ weight.astype(np.float64) + bias
            x = np.maximum(x, 0) if self.activation == "relu" else x * 0.5 * (1 + erf(x / np.sqrt(2)))
        weight, bias = self.layers[-1]
        logits: NDArray[np.float64] = (x @ weight.astype(np.float64) + bias)[:, 0]
        return logits


def add_branch(forward: onnx.ModelProto, branch: Branch) -> onnx.ModelProto:
    """A copy with one more output, `confidence_logit` float32 [N], after `logits`."""
    if has_branch(forward):
        raise ExportError(f"the graph already has the output {CONFIDENCE!r}. Remove it with without_branch.")
    scored = own_copy(forward)
    graph = scored.graph
    read, widths = append_branch_input(scored)
    if branch.width != sum(widths):
        raise ExportError(
            f"the branch reads {branch.width} values, and the graph has {sum(widths)}: {widths[0]} features and the "
            f"channels {widths[1:]} of its layers. A branch belongs to the graph it was fitted on."
        )
    append = Appender(graph, "branch")
    layers = [(weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in branch.layers]
    if np.abs(branch.offset.astype(np.float64) * branch.scale).max(initial=0) <= LARGEST_SHIFT:
        layers[0] = _standardising(branch)
    else:
        read = append.op("Sub", [read, append.constant("offset", branch.offset.astype(np.float32))], "centred")
        read = append.op("Mul", [read, append.constant("scale", branch.scale.astype(np.float32))], "standardised")
    graph.node.append(
        helper.make_node(
            "Squeeze",
            [_fully_connected(append, read, layers, branch.activation), append.int64s("axis", 1)],
            [CONFIDENCE],
            name="confidence",
        )
    )
    outputs = list(graph.output)
    place = [value.name for value in outputs].index(LOGITS) + 1
    outputs.insert(place, helper.make_tensor_value_info(CONFIDENCE, TensorProto.FLOAT, ["N"]))
    graph.ClearField("output")
    graph.output.extend(outputs)
    return scored


def has_branch(model: onnx.ModelProto) -> bool:
    """Whether the graph returns `confidence_logit`."""
    return has_output(model, CONFIDENCE)


def without_branch(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without `confidence_logit` and all that only it needs; what other outputs need stays as it is."""
    return without_output(model, CONFIDENCE)


def _standardising(branch: Branch) -> tuple[Weights, Weights]:
    """The first layer, which standardises its input too: ((x − o)·s)·W + b = x·(s·W) + (b − (o·s)·W)."""
    weight, bias = (array.astype(np.float64) for array in branch.layers[0])
    scale = branch.scale.astype(np.float64)
    folded = scale[:, np.newaxis] * weight
    return folded.astype(np.float32), (bias - branch.offset.astype(np.float64) @ folded).astype(np.float32)


def _fully_connected(append: Appender, x: str, layers: Sequence[tuple[Weights, Weights]], activation: str) -> str:
    for place, (weight, bias) in enumerate(layers):
        x = append.op("Gemm", [x, append.constant("weight", weight), append.constant("bias", bias)], "linear")
        if place < len(layers) - 1:
            x = append.op("Relu", [x], "activated") if activation == "relu" else _gelu(append, x)
    return x


def _gelu(append: Appender, x: str) -> str:
    """Written out, for Gelu came with opset 20; ONNX Runtime and the gradient's rules know this form too."""
    scaled = append.op("Div", [x, append.constant("root_of_two", np.array(np.sqrt(2), np.float32))], "scaled")
    erf_plus_one = append.op(
        "Add", [append.op("Erf", [scaled], "erf"), append.constant("one", np.array(1, np.float32))], "erf_plus_one"
    )
    product = append.op("Mul", [x, erf_plus_one], "product")
    return append.op("Mul", [product, append.constant("half", np.array(0.5, np.float32))], "activated")
