"""Rules for activations, which work element by element.

A derivative is computed from the node's output where possible (Relu, Sigmoid, Clip …): when no other node reads the
value between a Conv and its activation, ONNX Runtime can fuse the two.
"""

from __future__ import annotations

from training.graphs.gradient.builder import NoRuleError
from training.graphs.gradient.gelu import gelu_derivative, tanh_gelu_derivative
from training.graphs.gradient.rules import Step, derivative, mask

# The defaults of the ONNX operator.
SELU_ALPHA, SELU_GAMMA = 1.6732632423543772, 1.0507009873554805


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


@derivative("Gelu", "com.microsoft.Gelu")
def _gelu(step: Step) -> str:
    if step.attribute("approximate", b"none") == b"tanh":
        return tanh_gelu_derivative(step.graph, step.x)
    return gelu_derivative(step.graph, step.node.input)


@derivative("com.microsoft.QuickGelu")
def _quick_gelu(step: Step) -> str:
    """y = x·σ(αx)."""
    graph, alpha = step.graph, float(step.attribute("alpha", 1.702))
    sigmoid = graph.op("Sigmoid", graph.op("Mul", step.x, alpha))
    return graph.op("Add", sigmoid, graph.op("Mul", graph.op("Mul", step.y, alpha), graph.op("Sub", 1.0, sigmoid)))


@derivative("Elu")
def _elu(step: Step) -> str:
    """y + α where x is negative, because y is α·(exp x − 1) there."""
    falling = step.graph.op("Add", step.y, float(step.attribute("alpha", 1.0)))
    return _one_or(step, falling)


@derivative("Celu")
def _celu(step: Step) -> str:
    alpha = float(step.attribute("alpha", 1.0))
    return _one_or(step, step.graph.op("Add", step.graph.op("Div", step.y, alpha), 1.0))


@derivative("Selu")
def _selu(step: Step) -> str:
    graph, gamma = step.graph, float(step.attribute("gamma", SELU_GAMMA))
    falling = graph.op("Add", step.y, gamma * float(step.attribute("alpha", SELU_ALPHA)))
    return graph.op("Where", graph.op("Greater", step.x, 0.0), gamma, falling)


@derivative("PRelu")
def _p_relu(step: Step) -> str:
    if step.wanted != {0}:
        raise NoRuleError(step.node, "its slope depends on the image")
    return _one_or(step, step.node.input[1])


@derivative("ThresholdedRelu")
def _thresholded_relu(step: Step) -> str:
    return mask(step.graph, step.graph.op("Greater", step.x, float(step.attribute("alpha", 1.0))))


def _one_or(step: Step, otherwise: str) -> str:
    """1 where x is positive."""
    return step.graph.op("Where", step.graph.op("Greater", step.x, 0.0), 1.0, otherwise)


@derivative("Softsign")
def _softsign(step: Step) -> str:
    """1 / (1 + |x|)², and 1 / (1 + |x|) is 1 − |y|."""
    rest = step.graph.op("Sub", 1.0, step.graph.op("Abs", step.y))
    return step.graph.op("Mul", rest, rest)


@derivative("Mish")
def _mish(step: Step) -> str:
    """y = x·t with t = tanh(softplus x)."""
    graph = step.graph
    t = graph.op("Tanh", graph.op("Softplus", step.x))
    slope = graph.op("Mul", graph.op("Sigmoid", step.x), graph.op("Sub", 1.0, graph.op("Mul", t, t)))
    return graph.op("Add", t, graph.op("Mul", step.x, slope))
