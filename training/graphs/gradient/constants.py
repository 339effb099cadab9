"""Which tensors of a graph have the same value in every run.

torch's older exporter computes even fixed paddings and slice bounds node by node; ONNX Runtime folds such nodes when it
loads a graph, and the rules need their values before that.
"""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

# Sizes, paddings and scales are small. Larger tensors are derived from weights, and no rule needs their value.
MAX_ELEMENTS = 4096
# Arithmetic on sizes: what exporters write between a constant and the input of a Pad, Slice, Reshape or Expand.
FOLDABLE = frozenset(
    {"Add", "Cast", "Concat", "ConstantOfShape", "Div", "Gather", "Mul", "Neg", "Range", "Reshape", "Shape", "Slice"}
    | {"Squeeze", "Sub", "Transpose", "Unsqueeze"}
)


def constant_tensors(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    """Initialisers, constants, other names for either, and what is computed from these alone."""
    overridable = {value.name for value in graph.input}
    found = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in overridable}
    for node in graph.node:
        if node.op_type == "Constant":
            attribute = node.attribute[0]
            found.update({node.output[0]: attribute.t} if attribute.name == "value" else _fold(node, found))
        elif node.op_type == "Identity" and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
        elif _can_be_folded(node, found):
            found.update(_fold(node, found))
    return found


def _can_be_folded(node: onnx.NodeProto, found: dict[str, TensorProto]) -> bool:
    operands = [found.get(name) for name in node.input if name]
    return (
        node.domain == ""
        and node.op_type in FOLDABLE
        and bool(operands)
        and all(tensor is not None and math.prod(tensor.dims) <= MAX_ELEMENTS for tensor in operands)
    )


def _fold(node: onnx.NodeProto, found: dict[str, TensorProto]) -> dict[str, TensorProto]:
    feeds = {name: numpy_helper.to_array(found[name]) for name in node.input if name}
    try:
        values = ReferenceEvaluator(node).run(None, feeds)
    except Exception:  # noqa: BLE001 (it raises whatever numpy raises; a value that is not known is no error yet)
        return {}
    return {name: numpy_helper.from_array(value, name) for name, value in zip(node.output, values, strict=True)}
