"""Rules for nodes that work element by element: activations, powers and arithmetic with broadcasting.

A derivative is computed from the node's output where possible (Relu, Sigmoid, Clip …): when no other node reads the
value between a Conv and its activation, ONNX Runtime can fuse the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from training.graphs.gradient.builder import NoRuleError, Shape
from training.graphs.gradient.gelu import gelu_derivative
from training.graphs.gradient.rules import Step, derivative, mask, rule


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
    """x/3 + ½ for |x| < 3; 0 below and 1 above."""
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
    """Computes the wanted gradients and sums over the axes along which an operand was repeated."""
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

    def of_divisor() -> str:
        return op("Neg", op("Div", op("Mul", step.gradient, step.y), b))

    return _broadcast(step, {0: lambda: op("Div", step.gradient, b), 1: of_divisor})
