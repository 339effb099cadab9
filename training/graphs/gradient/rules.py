"""The table of rules, one for each operator: from the gradient of a node's outputs to the gradients of its inputs.

A rule reads the values that the forward pass has computed and appends nodes; it never computes a forward value again.
The rules are in the modules `*_rules` beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from training.graphs.gradient.builder import GraphBuilder, NoRuleError


@dataclass(frozen=True)
class Step:
    """What a rule may use: the node, the gradients of its outputs, and which inputs want one."""

    graph: GraphBuilder
    node: onnx.NodeProto
    gradients: Sequence[str | None]
    wanted: frozenset[int]

    @property
    def gradient(self) -> str:
        """The gradient of the first output, the only one that most nodes have."""
        if self.gradients[0] is None:
            raise NoRuleError(self.node, "only one of its further outputs leads to the score")
        return self.gradients[0]

    @property
    def x(self) -> str:
        return str(self.node.input[0])

    @property
    def y(self) -> str:
        return str(self.node.output[0])

    def attribute(self, name: str, default: Any) -> Any:
        for attribute in self.node.attribute:
            if attribute.name == name:
                return helper.get_attribute_value(attribute)
        return default

    def has_input(self, index: int) -> bool:
        return len(self.node.input) > index and self.node.input[index] != ""

    def static_sizes(self, name: str, axes: Sequence[int]) -> list[int]:
        """Sizes along `axes`; a size that is not fixed has no rule."""
        shape = self.graph.shape(name)
        sizes = [size for axis in axes if (size := shape[axis]) is not None]
        if len(sizes) < len(axes):
            raise NoRuleError(self.node, f"the shape of {name!r}, {list(shape)}, is not static along axes {list(axes)}")
        return sizes

    def constant_input(self, index: int) -> np.ndarray | None:
        """The value of an optional input; None if it is left out. One that is not constant has no rule."""
        if not self.has_input(index):
            return None
        value = self.graph.constant(self.node.input[index])
        if value is None:
            raise NoRuleError(self.node, f"its input {index} ({self.node.input[index]!r}) is not constant")
        return value


Rule = Callable[[Step], dict[int, str]]
RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Registers a rule for these operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, function))
        return function

    return register


def derivative(*op_types: str) -> Callable[[Callable[[Step], str]], Callable[[Step], str]]:
    """Registers an elementwise function by its derivative; the chain rule is the same for all."""

    def register(function: Callable[[Step], str]) -> Callable[[Step], str]:
        rule(*op_types)(lambda step: {0: step.graph.op("Mul", step.gradient, function(step))})
        return function

    return register


def mask(graph: GraphBuilder, *conditions: str) -> str:
    """1.0 where all conditions hold, else 0.0. A product with it is quicker than Where on the CPU."""
    both = conditions[0] if len(conditions) == 1 else graph.op("And", *conditions)
    return graph.op("Cast", both, to=onnx.TensorProto.FLOAT)


def scatter(graph: GraphBuilder, gradient: str, places: str, *, like: str, reduction: str = "none") -> str:
    """Zeros of the shape of `like` with `gradient` at `places`, which are flat indices in row-major order."""
    zeros = graph.op("ConstantOfShape", graph.op("Shape", like))
    flat = [graph.op("Reshape", value, [-1]) for value in (zeros, places, gradient)]
    return graph.reshape_like(graph.op("ScatterElements", *flat, axis=0, reduction=reduction), like)
