"""One rule per operator: from the gradient of a node's outputs to the gradients of its inputs.

A rule reads the values that the forward pass has computed and appends nodes; it never computes a forward value again.
Where a derivative can be had from a node's output, it is (Relu, Sigmoid, Clip …): a value between a Conv and its
activation that nobody reads lets ONNX Runtime fuse the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from training.graphs.gradient.builder import GraphBuilder, NoRuleError, Shape
from training.graphs.gradient.gelu import gelu_derivative


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
    """Zeros of the shape of `like`, but for `gradient` at `places`, which count the elements row by row."""
    zeros = graph.op("ConstantOfShape", graph.op("Shape", like))
    flat = [graph.op("Reshape", value, [-1]) for value in (zeros, places, gradient)]
    return graph.reshape_like(graph.op("ScatterElements", *flat, axis=0, reduction=reduction), like)


@derivative("Relu")
def _relu(step: Step) -> str:
    return mask(step.graph, step.graph.op("Greater", step.y, 0.0))


@derivative("LeakyRelu")
def _leaky_relu(step: Step) -> str:
    alpha = float(step.attribute("alpha", 0.01))
    return step.graph.op("Where", step.graph.op("Greater", step.x, 0.0), 1.0, alpha)


@derivative("Clip")
def _clip(step: Step) -> str:
    """Zero at the bounds themselves, as torch has it for ReLU6 and Hardtanh."""
    low, high = step.constant_input(1), step.constant_input(2)
    inside = []
    if low is not None:
        inside.append(step.graph.op("Greater", step.y, low))
    if high is not None:
        inside.append(step.graph.op("Less", step.y, high))
    return mask(step.graph, *inside) if inside else step.graph.op("Identity", 1.0)


@derivative("Sigmoid")
def _sigmoid(step: Step) -> str:
    return step.graph.op("Mul", step.y, step.graph.op("Sub", 1.0, step.y))


@derivative("Tanh")
def _tanh(step: Step) -> str:
    return step.graph.op("Sub", 1.0, step.graph.op("Mul", step.y, step.y))


@derivative("HardSigmoid")
def _hard_sigmoid(step: Step) -> str:
    graph = step.graph
    inside = mask(graph, graph.op("Greater", step.y, 0.0), graph.op("Less", step.y, 1.0))
    return graph.op("Mul", inside, float(step.attribute("alpha", 0.2)))


@derivative("HardSwish")
def _hard_swish(step: Step) -> str:
    """x/3 + ½ for |x| < 3, outside 0 or 1."""
    graph = step.graph
    inside = graph.op("Less", graph.op("Abs", step.x), 3.0)
    ramp = graph.op("Add", graph.op("Mul", step.x, 1 / 3), 0.5)
    return graph.op("Where", inside, ramp, mask(graph, graph.op("Greater", step.x, 0.0)))


@derivative("Softplus")
def _softplus(step: Step) -> str:
    return step.graph.op("Sigmoid", step.x)


@derivative("Erf")
def _erf(step: Step) -> str:
    bell = step.graph.op("Exp", step.graph.op("Neg", step.graph.op("Mul", step.x, step.x)))
    return step.graph.op("Mul", bell, 2 / math.sqrt(math.pi))


@derivative("Gelu", "com.microsoft.Gelu")
def _gelu(step: Step) -> str:
    if step.attribute("approximate", b"none") != b"none":
        raise NoRuleError(step.node, "only the exact GELU is known")
    return gelu_derivative(step.graph, step.node.input)


@derivative("Exp")
def _exp(step: Step) -> str:
    return step.y


@derivative("Sqrt")
def _sqrt(step: Step) -> str:
    return step.graph.op("Div", 0.5, step.y)


@derivative("Reciprocal")
def _reciprocal(step: Step) -> str:
    return step.graph.op("Neg", step.graph.op("Mul", step.y, step.y))


@derivative("Pow")
def _pow(step: Step) -> str:
    exponent = step.constant_input(1)
    if exponent is None or exponent.size != 1:
        raise NoRuleError(step.node, "its exponents are several")
    power = float(exponent.item())
    return step.graph.op("Mul", step.graph.op("Pow", step.x, power - 1), power)


@rule("Neg")
def _neg(step: Step) -> dict[int, str]:
    return {0: step.graph.op("Neg", step.gradient)}


@rule("Identity", "Dropout")
def _identity(step: Step) -> dict[int, str]:
    training = step.constant_input(2)
    if training is not None and training.any():
        raise NoRuleError(step.node, "it is in training mode")
    return {0: step.gradient}


@rule("Cast")
def _cast(step: Step) -> dict[int, str]:
    return {0: step.graph.op("Cast", step.gradient, to=step.graph.elem_type(step.x))}


def _broadcast(step: Step, gradients: dict[int, Callable[[], str]]) -> dict[int, str]:
    """Computes only what is wanted, and adds up over the axes along which an operand was repeated."""
    shape: Shape = step.graph.shape(step.y)
    return {
        index: step.graph.sum_to(gradient(), shape, step.node.input[index])
        for index, gradient in gradients.items()
        if index in step.wanted
    }


@rule("Add", "Sum")
def _add(step: Step) -> dict[int, str]:
    return _broadcast(step, {index: lambda: step.gradient for index in range(len(step.node.input))})


@rule("Sub")
def _sub(step: Step) -> dict[int, str]:
    return _broadcast(step, {0: lambda: step.gradient, 1: lambda: step.graph.op("Neg", step.gradient)})


@rule("Mul")
def _mul(step: Step) -> dict[int, str]:
    a, b = step.node.input
    op = step.graph.op
    return _broadcast(step, {0: lambda: op("Mul", step.gradient, b), 1: lambda: op("Mul", step.gradient, a)})


@rule("Div")
def _div(step: Step) -> dict[int, str]:
    _, b = step.node.input
    op = step.graph.op
    by_divisor = lambda: op("Neg", op("Div", op("Mul", step.gradient, step.y), b))  # noqa: E731
    return _broadcast(step, {0: lambda: op("Div", step.gradient, b), 1: by_divisor})


@rule("Gemm")
def _gemm(step: Step) -> dict[int, str]:
    """Y = α·A'·B' + β·C, where a dash stands for "transposed, if so asked"."""
    graph, g = step.graph, step.gradient
    a, b = step.node.input[:2]
    trans_a, trans_b = int(step.attribute("transA", 0)), int(step.attribute("transB", 0))
    alpha, beta = float(step.attribute("alpha", 1.0)), float(step.attribute("beta", 1.0))
    out: dict[int, str] = {}
    if 0 in step.wanted:
        first, second, t1, t2 = (b, g, trans_b, 1) if trans_a else (g, b, 0, 1 - trans_b)
        out[0] = graph.op("Gemm", first, second, alpha=alpha, transA=t1, transB=t2)
    if 1 in step.wanted:
        first, second, t1, t2 = (g, a, 1, trans_a) if trans_b else (a, g, 1 - trans_a, 0)
        out[1] = graph.op("Gemm", first, second, alpha=alpha, transA=t1, transB=t2)
    if 2 in step.wanted:
        scaled = g if beta == 1.0 else graph.op("Mul", g, beta)
        out[2] = graph.sum_to(scaled, graph.shape(step.y), step.node.input[2])
    return out


@rule("MatMul")
def _matmul(step: Step) -> dict[int, str]:
    graph, (a, b) = step.graph, step.node.input
    rank_a, rank_b = len(graph.shape(a)), len(graph.shape(b))
    if min(rank_a, rank_b) < 2:
        raise NoRuleError(step.node, "one of its operands is a vector")

    def transposed(name: str, rank: int) -> str:
        return graph.op("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])

    out: dict[int, str] = {}
    if 0 in step.wanted:
        product = graph.op("MatMul", step.gradient, transposed(b, rank_b))
        out[0] = graph.sum_to(product, _batched(graph, step.y, a), a)
    if 1 in step.wanted:
        product = graph.op("MatMul", transposed(a, rank_a), step.gradient)
        out[1] = graph.sum_to(product, _batched(graph, step.y, b), b)
    return out


def _batched(graph: GraphBuilder, output: str, operand: str) -> Shape:
    """The operand's matrices, with the leading axes of the output."""
    return (*graph.shape(output)[:-2], *graph.shape(operand)[-2:])


@rule("BatchNormalization")
def _batch_normalization(step: Step) -> dict[int, str]:
    if step.attribute("training_mode", 0):
        raise NoRuleError(step.node, "it is in training mode")
    graph = step.graph
    scale, variance = step.node.input[1], step.node.input[4]
    deviation = graph.op("Sqrt", graph.op("Add", variance, float(step.attribute("epsilon", 1e-5))))
    n_spatial = len(graph.shape(step.x)) - 2
    per_channel = graph.op("Reshape", graph.op("Div", scale, deviation), [-1, *[1] * n_spatial])
    return {0: graph.op("Mul", step.gradient, per_channel)}
