"""The penultimate features of any classifier's graph: what its last linear layer reads.

    name = find_features(onnx.load("model.onnx", load_external_data=False))

The walk goes back from `logits` over operators without weights (scaling, bias, softmax, pooling, reshaping) to the last
Gemm, MatMul or 1×1 Conv, whose other operand must be constant. It reads the graph's structure alone: weights in a file
beside the graph need not be loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper
from onnx.inliner import inline_local_functions

from training.errors import ExportError
from training.graphs.append import Appender
from training.graphs.image_input import OPSET

LOGITS, FEATURES = "logits", "features"

# What may follow the last linear layer: operators without weights of their own.
_ELEMENTWISE = {"Identity", "Cast", "Dropout", "Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "Exp", "Log", "Neg"}
_ELEMENTWISE |= {"Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "BatchNormalization"}
_ELEMENTWISE |= {"QuantizeLinear", "DequantizeLinear"}
_SHAPE = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather"}
_WITHIN_A_ROW = {"Softmax", "LogSoftmax", "ReduceSum", "ReduceMax", "ReduceLogSumExp"}
_POOLING = {"GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", "ReduceMean"}
_PASSED = _ELEMENTWISE | _SHAPE | _WITHIN_A_ROW | _POOLING


class NoFeaturesError(ExportError):
    """The graph has no penultimate features that can be found; the message says why."""


@dataclass(frozen=True)
class FeatureTensor:
    """Where the features are: a tensor of any rank with the batch first and `size` channels on one axis."""

    name: str
    size: int
    channels_last: bool  # else they are on axis 1
    is_flat: bool  # [N,D], with no other axes to average over
    is_float32: bool


def find_features(model: onnx.ModelProto) -> str:
    """The name of the tensor that the last linear layer before `logits` reads."""
    return locate_features(model).name


def with_features(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with one more output, `features` float32 [N,D]; other axes than batch and channels are averaged."""
    shown = own_copy(model)
    graph = shown.graph
    if any(value.name == FEATURES for value in (*graph.input, *graph.output)):
        raise NoFeaturesError(f"the graph already has an input or output {FEATURES!r}. Rename it.")
    _rename(graph, FEATURES, f"{FEATURES}/inner")
    name, size = append_features(shown)
    graph.node.append(helper.make_node("Identity", [name], [FEATURES], name="show_features"))
    graph.output.append(helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["N", size]))
    return shown


def own_copy(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy to append nodes to. Functions are inlined in it: then their nodes are nodes like any other."""
    return inline_local_functions(model) if model.functions else copy.deepcopy(model)


def append_features(model: onnx.ModelProto) -> tuple[str, int]:
    """Appends what makes the features float32 [N,D], in place, if they are not; their name, and D."""
    found = locate_features(model)
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset < OPSET:
        raise NoFeaturesError(
            f"the graph is at opset {opset}, expected {OPSET} or later. Convert it with "
            f"onnx.version_converter.convert_version(model, {OPSET})."
        )
    append, name = Appender(model.graph, FEATURES), found.name
    if not found.is_float32:
        name = append.op("Cast", [name], "float32", to=TensorProto.FLOAT)
    if not found.is_flat:
        # A 0 keeps the batch, and -1 holds all positions, of which there may be one.
        shape = (0, -1, found.size) if found.channels_last else (0, found.size, -1)
        name = append.op("Reshape", [name, append.int64s("shape", *shape)], "positions")
        axis = append.int64s("axis", 1 if found.channels_last else 2)
        name = append.op("ReduceMean", [name, axis], "mean", keepdims=0)
    return name, found.size


def locate_features(model: onnx.ModelProto) -> FeatureTensor:
    """The tensor that the last linear layer before `logits` reads, and how its axes are to be understood."""
    graph = (inline_local_functions(model) if model.functions else model).graph
    outputs = [value.name for value in graph.output]
    if LOGITS not in outputs:
        raise NoFeaturesError(f"the graph has the outputs {outputs}, expected {LOGITS!r} among them.")
    constants = constant_names(graph)
    needed, pooled = {LOGITS}, False
    for node in reversed(graph.node):
        if not needed.intersection(node.output):
            continue
        needed.difference_update(node.output)
        if node.op_type in ("Gemm", "MatMul", "Conv") and node.domain in ("", "ai.onnx"):
            if needed:
                raise NoFeaturesError(
                    f"{_shown(node)} is the last linear layer, but {LOGITS!r} also depends on {sorted(needed)}, which "
                    f"leads around it."
                )
            return _input_of(model, node, constants, pooled)
        if node.op_type not in _PASSED or node.domain not in ("", "ai.onnx"):
            raise NoFeaturesError(
                f"{_shown(node)} lies between {LOGITS!r} and the last linear layer, and what it does is not known here."
            )
        pooled |= node.op_type in _POOLING
        # A shape or an index may be computed from the image's size: that is no way around the last layer.
        read = node.input[:1] if node.op_type in _SHAPE else node.input
        needed.update(name for name in read if name and name not in constants)
    raise NoFeaturesError(f"no Gemm, MatMul or 1×1 Conv with constant weights leads to {LOGITS!r}.")


def _input_of(model: onnx.ModelProto, node: onnx.NodeProto, constants: set[str], pooled: bool) -> FeatureTensor:
    """What a linear layer reads."""
    data, weight = node.input[0], node.input[1]
    if data in constants or weight not in constants:
        raise NoFeaturesError(f"{_shown(node)} is the last layer, and its second operand is not a constant weight.")
    shapes, types = shapes_and_types(model)
    weight_shape = shapes.get(weight)
    size = _features_read(node, weight_shape)
    if not size:
        raise NoFeaturesError(
            f"{_shown(node)} is the last layer, and its weight of shape {weight_shape} is none of a layer that reads "
            f"one vector: expected a Gemm or MatMul of two axes, or a Conv with a 1×1 kernel and one group."
        )
    rank = 2 if node.op_type == "Gemm" else len(shapes.get(data, []))
    if rank == 1 or (rank == 2 and pooled):  # an average over rows: an image has several
        raise NoFeaturesError(
            f"{_shown(node)} is the last layer, and reads {data!r}: expected one row for each image, and its rows are "
            f"averaged later."
        )
    return FeatureTensor(
        name=data,
        size=size,
        channels_last=node.op_type != "Conv",
        is_flat=rank == 2,
        is_float32=types.get(data) == TensorProto.FLOAT,
    )


def _features_read(node: onnx.NodeProto, weight_shape: Sequence[int] | None) -> int | None:
    """How many features a linear layer reads, from the shape of its weight; None if it is no such layer."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if weight_shape is None:
        return None
    if node.op_type == "Conv":
        is_pointwise = set(weight_shape[2:]) == {1} and attributes.get("group", 1) == 1
        return weight_shape[1] if is_pointwise else None
    if len(weight_shape) != 2 or attributes.get("transA"):
        return None
    return weight_shape[1 if attributes.get("transB") else 0]


def constant_names(graph: onnx.GraphProto) -> set[str]:
    """Tensors that are the same in every run: initialisers, constants, and what is made of these alone."""
    given = {value.name for value in graph.input}
    constants = {tensor.name for tensor in graph.initializer} - given
    for node in graph.node:
        has_body = any(attribute.HasField("g") for attribute in node.attribute)  # which may read anything
        if not has_body and all(name in constants for name in node.input if name):
            constants.update(node.output)
    return constants


def shapes_and_types(model: onnx.ModelProto) -> tuple[dict[str, list[int]], dict[str, int]]:
    """As far as shape inference finds them; a dimension that is not fixed is 0."""
    inferred = onnx.shape_inference.infer_shapes(own_copy(model)).graph
    shapes: dict[str, list[int]] = {tensor.name: list(tensor.dims) for tensor in inferred.initializer}
    types: dict[str, int] = {tensor.name: tensor.data_type for tensor in inferred.initializer}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        types[value.name] = value.type.tensor_type.elem_type
        if value.type.tensor_type.HasField("shape"):
            shapes[value.name] = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
    return shapes, types


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    for named in (*graph.initializer, *graph.value_info):
        named.name = new if named.name == old else named.name


def _shown(node: onnx.NodeProto) -> str:
    op_type = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{op_type} (node {node.name or node.output[0]!r})"
