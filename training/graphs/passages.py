"""A graph as a row of passages: what lies between two tensors that every path from the image to the features passes.

In a plain chain every tensor is such a point. In a block with a shortcut only its beginning and its end are, and inside
an activation that an exporter wrote as several nodes (x·sigmoid(x)) no tensor is. So one look at the graph's structure
tells the blocks of any network, whatever its exporter called them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from training.graphs.gradient.walk import inputs_of, nodes_between

LINEAR = {"Identity", "Dropout", "Cast", "Add", "Sub", "Mul", "Div", "Neg", "BatchNormalization"}
LINEAR |= {"QuantizeLinear", "DequantizeLinear"}
NONLINEAR = {"Relu", "LeakyRelu", "PRelu", "ThresholdedRelu", "Elu", "Selu", "Celu", "Clip", "Min", "Max", "Mish"}
NONLINEAR |= {"Gelu", "HardSwish", "Swish", "Sigmoid", "HardSigmoid", "Tanh", "Erf", "Exp", "Pow", "Softplus"}
NONLINEAR |= {"Softsign", "Abs", "Sqrt", "Log", "Reciprocal", "BiasGelu", "FastGelu", "QuickGelu"}
WEIGHTED = {"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "ConvInteger", "MatMulInteger", "Attention"}
WEIGHTED |= {"QLinearConv", "QLinearMatMul", "FusedConv", "MultiHeadAttention", "LSTM", "GRU"}
_CHANNELS_FIRST = {"Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization", "GroupNormalization"}
_CHANNELS_FIRST |= {"GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", "QLinearConv", "FusedConv"}
_CHANNELS_LAST = {"MatMul", "Gemm", "LayerNormalization", "Attention", "MultiHeadAttention"}

FIRST, LAST = 1, -1  # axes of the channels

Kind = Literal["activation", "merge", "linear", "other"]


@dataclass(frozen=True)
class Passage:
    """The nodes from one such point to the next, which is `end`."""

    start: str
    nodes: tuple[onnx.NodeProto, ...]
    end: str
    kind: Kind


def passages_between(graph: onnx.GraphProto, source: str, target: str) -> list[Passage]:
    """All passages in the graph's order; a size that is read from a tensor is no path."""
    nodes = nodes_between([node for node in graph.node if node.op_type not in ("Shape", "Size")], source, target)
    reached = {source} | {name for node in nodes for name in node.output if name}
    readers = Counter(name for node in nodes for name in inputs_of(node) & reached)
    clipping = _clipping_nodes(graph, nodes)
    found: list[Passage] = []
    still_read = Counter({source: readers[source]})
    start, since = source, list[onnx.NodeProto]()
    for node in nodes:
        since.append(node)
        still_read.subtract(inputs_of(node) & reached)
        still_read.update({name: readers[name] for name in node.output if readers[name]})
        still_read = +still_read
        # At a point that all paths pass, nothing else that was computed before is read later.
        if set(still_read) <= set(node.output) and len(still_read) <= 1:
            end = next(iter(still_read), target)
            found.append(Passage(start, tuple(since), end, _kind(since, reached, clipping)))
            start, since = end, []
    return found


def _kind(nodes: list[onnx.NodeProto], reached: set[str], clipping: set[str]) -> Kind:
    types = {node.op_type for node in nodes}
    if types <= LINEAR | NONLINEAR:
        clips = any(clipping.intersection(node.output) for node in nodes)
        return "activation" if types & NONLINEAR or clips else "linear"
    last = nodes[-1]
    joined = {name for name in last.input if name in reached}
    if last.op_type in ("Add", "Sum", "Concat") and len(joined) > 1 and types & WEIGHTED:
        return "merge"
    return "other"


def _clipping_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> set[str]:
    """What QuantizeLinear nodes make that are a ReLU too: quantisers drop it if the zero point is the lowest value."""
    lowest = {tensor.name for tensor in graph.initializer if _is_lowest(tensor)}
    made_by = {name: node.op_type for node in nodes for name in node.output}
    return {
        node.output[0]
        for node in nodes
        if node.op_type == "QuantizeLinear"
        and made_by.get(node.input[0]) in WEIGHTED | LINEAR - {"DequantizeLinear"}
        and (len(node.input) < 3 or node.input[2] in lowest)
    }


def _is_lowest(tensor: TensorProto) -> bool:
    if tensor.data_type not in (TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16):
        return False
    if math.prod(tensor.dims) != 1 or uses_external_data(tensor):
        return False
    value = numpy_helper.to_array(tensor)
    return bool((value == np.iinfo(value.dtype).min).all())


def channel_axes(nodes: Iterable[onnx.NodeProto]) -> dict[str, int]:
    """Where the channels of each tensor are, as far as operators tell: FIRST, LAST, or another axis on the way."""
    axes: dict[str, int] = {}
    for node in nodes:
        axis = _axis_of_output(node, axes)
        if axis is not None:
            axes.update(dict.fromkeys((name for name in node.output if name), axis))
    return axes


def _axis_of_output(node: onnx.NodeProto, axes: Mapping[str, int]) -> int | None:
    if node.op_type in _CHANNELS_FIRST:
        return FIRST
    if node.op_type in _CHANNELS_LAST:
        return LAST
    axis = next((axes[name] for name in node.input if name in axes), None)
    if axis is None or node.op_type != "Transpose":
        return axis
    order = next((list(helper.get_attribute_value(entry)) for entry in node.attribute if entry.name == "perm"), [])
    if not order:
        return None
    place = order.index(axis % len(order))
    return LAST if place == len(order) - 1 else place
