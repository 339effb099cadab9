"""Appending nodes to a graph under a prefix of their own, and taking away an output with all that only it needs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from training.graphs.gradient.walk import inputs_of


class Appender:
    """Adds nodes and constants to a graph; their names start with the prefix, and no other tensor has them."""

    def __init__(self, graph: onnx.GraphProto, prefix: str) -> None:
        self.graph, self.prefix = graph, prefix
        self._taken = {name for node in graph.node for name in node.output}
        self._taken |= {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}

    def op(self, op_type: str, inputs: Sequence[str], stem: str, **attributes: Any) -> str:
        """The name of the node's only output."""
        name = self._unused(stem)
        self.graph.node.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def constant(self, stem: str, value: NDArray[Any]) -> str:
        name = self._unused(stem)
        self.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def int64s(self, stem: str, *values: int) -> str:
        return self.constant(stem, np.array(values, np.int64))

    def _unused(self, stem: str) -> str:
        names = (f"{self.prefix}/{stem}{number or ''}" for number in range(len(self._taken) + 1))
        name = next(name for name in names if name not in self._taken)
        self._taken.add(name)
        return name


def has_output(model: onnx.ModelProto, name: str) -> bool:
    return any(value.name == name for value in model.graph.output)


def without_output(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """A copy without this output and all that only it needs; what other outputs need stays as it is."""
    plain = copy.deepcopy(model)
    graph = plain.graph
    others = [value for value in graph.output if value.name != name]
    kept = _ancestors(graph, [value.name for value in others])
    dropped = _ancestors(graph, [name]) - kept if has_output(model, name) else set()
    nodes = [node for node in graph.node if not dropped.intersection(node.output)]
    initializers = [tensor for tensor in graph.initializer if tensor.name not in dropped]
    infos = [value for value in graph.value_info if value.name not in dropped]
    for field, values in (("output", others), ("node", nodes), ("initializer", initializers), ("value_info", infos)):
        graph.ClearField(field)
        getattr(graph, field).extend(values)
    return plain


def _ancestors(graph: onnx.GraphProto, names: list[str]) -> set[str]:
    """All tensors that those of these names are computed from, and the names themselves."""
    needed = set(names)
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(inputs_of(node))
            needed.update(name for name in node.output if name)
    return needed
