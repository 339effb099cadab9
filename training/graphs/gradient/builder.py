"""An ONNX graph that knows its tensors and grows by one node at a time.

Nodes are only appended, so the list stays in topological order. Values that depend on weights alone (a flipped kernel,
a batch-norm scale) are nodes too, not a second copy of the weights: ONNX Runtime folds such nodes once, when it loads
the graph, and the file stays as small as the forward graph.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.inliner import inline_local_functions

from training.errors import ExportError
from training.graphs.gradient.constants import MAX_ELEMENTS, constant_tensors
from training.graphs.gradient.measured_shapes import measured_shapes
from training.graphs.weights import same_weights_as, weights_folder

Operand = str | float | Sequence[int] | np.ndarray
"""A tensor's name, or a constant: a float32 scalar, a list of int64, or any array."""

Shape = tuple[int | None, ...]
"""None stands for a symbolic dimension: the batch."""

FLOAT_TYPES = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16})


class GradientError(ExportError):
    """The graph cannot be differentiated; the message says which part of it and why."""


class NoRuleError(GradientError):
    """A node between the input and the score has no derivative here."""

    def __init__(self, node: onnx.NodeProto, why: str = "there is no gradient rule for it") -> None:
        self.op_type = rule_name(node)
        super().__init__(f"cannot differentiate {self.op_type} (node {node.name or node.output[0]!r}): {why}")
        self.node_name = node.name


def rule_name(node: onnx.NodeProto) -> str:
    """The operator as the table of rules names it: with its domain, unless it is one of ONNX's own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


class GraphBuilder:
    """A private copy of `model`, with the shape, type and value of its tensors at hand."""

    def __init__(self, model: onnx.ModelProto) -> None:
        opset = {entry.domain: entry.version for entry in model.opset_import}.get("", 0)
        if opset < 18:
            raise GradientError(
                f"the graph uses opset {opset}, the rules are written for 18: "
                "convert it with onnx.version_converter.convert_version(model, 18)"
            )
        # Inlined, the nodes of functions are nodes like any other.
        self.model = inline_local_functions(model) if model.functions else copy.deepcopy(model)
        self.graph = self.model.graph
        self.forward_nodes = copy.deepcopy(list(self.graph.node))
        self._constants = constant_tensors(self.graph)
        self._types = self._infer_types()
        self._emitted: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._names = {name for node in self.graph.node for name in (*node.input, *node.output)} | set(self._constants)

    def _infer_types(self) -> dict[str, onnx.TypeProto.Tensor]:
        """Shape inference on the graph with all constant values given to it."""
        told = onnx.ModelProto(ir_version=self.model.ir_version, opset_import=self.model.opset_import)
        told.graph.CopyFrom(onnx.GraphProto(name="told", input=self.graph.input, output=self.graph.output))
        told.graph.value_info.extend(self.graph.value_info)
        for name, tensor in self._constants.items():
            if math.prod(tensor.dims) <= MAX_ELEMENTS:
                told.graph.initializer.add().CopyFrom(tensor)
                told.graph.initializer[-1].name = name
            else:  # for weights, type and shape are enough
                told.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
        told.graph.node.extend(node for node in self.graph.node if node.output[0] not in self._constants)
        inferred = onnx.shape_inference.infer_shapes(told, data_prop=True).graph
        values = (*inferred.input, *inferred.value_info, *inferred.output)
        return {value.name: value.type.tensor_type for value in values}

    def constant(self, name: str) -> np.ndarray | None:
        """The value of a tensor that is the same in every run, else None."""
        tensor = self._constants.get(name)
        if tensor is None:
            return None
        folder = weights_folder(self.model)
        return numpy_helper.to_array(tensor, base_dir="" if folder is None else str(folder))

    def elem_type(self, name: str) -> int:
        if name in self._constants:
            return self._constants[name].data_type
        return self._types[name].elem_type if name in self._types else TensorProto.UNDEFINED

    def is_float(self, name: str) -> bool:
        """Whether a gradient can flow through the tensor; shapes and indices carry none."""
        # An unknown type comes from an operator that shape inference does not know: the walk names it in its error.
        return self.elem_type(name) in FLOAT_TYPES | {TensorProto.UNDEFINED}

    def shape(self, name: str) -> Shape:
        if name in self._constants:
            return tuple(self._constants[name].dims)
        inferred = self._inferred_shape(name)
        # The batch is the only size that a graph of images of one size leaves open.
        if inferred is None or inferred.count(None) > 1:
            inferred = self._measured.get(name, inferred)
        if inferred is None:
            raise GradientError(f"the shape of tensor {name!r} is unknown")
        return inferred

    def _inferred_shape(self, name: str) -> Shape | None:
        if name not in self._types or not self._types[name].HasField("shape"):
            return None
        return tuple(d.dim_value if d.HasField("dim_value") else None for d in self._types[name].shape.dim)

    @cached_property
    def _measured(self) -> dict[str, Shape]:
        """Only some graphs need it: it runs the network twice."""
        forward = onnx.ModelProto(ir_version=self.model.ir_version, opset_import=self.model.opset_import)
        forward.graph.CopyFrom(onnx.GraphProto(name="forward", input=self.graph.input))
        forward.graph.initializer.extend(self.graph.initializer)
        forward.graph.node.extend(self.forward_nodes)
        same_weights_as(forward, self.model)
        names = [name for node in self.forward_nodes for name in node.output if name and self.is_float(name)]
        return measured_shapes(forward, names)

    def op(self, op_type: str, *operands: Operand, **attributes: Any) -> str:
        """Append a node with one output and return the output's name."""
        return self.op_many(op_type, 1, *operands, **attributes)[0]

    def op_many(self, op_type: str, n_outputs: int, *operands: Operand, **attributes: Any) -> list[str]:
        """Append a node with several outputs and return their names."""
        outputs = [self.unique(f"gradient/{op_type}") for _ in range(n_outputs)]
        inputs = [operand if isinstance(operand, str) else self._emit_constant(operand) for operand in operands]
        self.graph.node.append(helper.make_node(op_type, inputs, outputs, name=outputs[0], **attributes))
        return outputs

    def unique(self, stem: str) -> str:
        """A tensor name that is not used yet."""
        number = len(self._names)
        while f"{stem}_{number}" in self._names:
            number += 1
        self._names.add(f"{stem}_{number}")
        return f"{stem}_{number}"

    def _emit_constant(self, value: float | Sequence[int] | np.ndarray) -> str:
        if isinstance(value, float):
            array = np.array(value, np.float32)
        else:
            array = value if isinstance(value, np.ndarray) else np.array(value, np.int64)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._emitted:
            self._emitted[key] = self.unique("gradient/constant")
            self.graph.initializer.append(numpy_helper.from_array(array, self._emitted[key]))
        return self._emitted[key]

    def with_output(self, node: onnx.NodeProto, index: int) -> str:
        """The name of an optional output of a forward node; the output is added if the node does not have it yet."""
        while len(node.output) <= index:
            node.output.append("")
        if not node.output[index]:
            node.output[index] = self.unique(f"gradient/{node.op_type}_output")
        return str(node.output[index])

    def reshape_like(self, value: str, like: str) -> str:
        """`value` with the shape of `like`: a constant shape if at most the batch is unknown, else read at run time."""
        shape = self.shape(like)
        if shape.count(None) <= 1 and 0 not in shape:
            return self.op("Reshape", value, [-1 if size is None else size for size in shape])
        return self.op("Reshape", value, self.op("Shape", like))

    def sum_to(self, value: str, value_shape: Shape, like: str) -> str:
        """Undo broadcasting: add up `value` over the axes along which `like` was repeated."""
        shape = self.shape(like)
        n_new = len(value_shape) - len(shape)
        repeated = [n_new + axis for axis, size in enumerate(shape) if size == 1 and value_shape[n_new + axis] != 1]
        if repeated:
            value = self.op("ReduceSum", value, repeated, keepdims=1)
        if n_new:
            value = self.op("ReduceSum", value, list(range(n_new)), keepdims=0)
        return value
