"""Rules for softmax and for the layers that normalise: by batch statistics, along axes, or over neighbouring channels.

Those along axes have one derivative. With x̂ = (x − mean)·r, r = 1/deviation and g the gradient of x̂, it is
r·(g − mean(g) − x̂·mean(g·x̂)).
"""

from __future__ import annotations

from collections.abc import Sequence

from training.graphs.gradient.builder import NoRuleError
from training.graphs.gradient.rules import Step, rule


@rule("Softmax")
def _softmax(step: Step) -> dict[int, str]:
    graph, axis = step.graph, int(step.attribute("axis", -1))
    weighted = graph.op("Mul", step.gradient, step.y)
    total = graph.op("ReduceSum", weighted, [axis], keepdims=1)
    return {0: graph.op("Sub", weighted, graph.op("Mul", step.y, total))}


@rule("LogSoftmax")
def _log_softmax(step: Step) -> dict[int, str]:
    graph, axis = step.graph, int(step.attribute("axis", -1))
    total = graph.op("ReduceSum", step.gradient, [axis], keepdims=1)
    return {0: graph.op("Sub", step.gradient, graph.op("Mul", graph.op("Exp", step.y), total))}


@rule("BatchNormalization")
def _batch_normalization(step: Step) -> dict[int, str]:
    if step.attribute("training_mode", 0):
        raise NoRuleError(step.node, "it is in training mode")
    graph = step.graph
    scale, variance = step.node.input[1], step.node.input[4]
    deviation = graph.op("Sqrt", graph.op("Add", variance, float(step.attribute("epsilon", 1e-5))))
    return {0: graph.op("Mul", step.gradient, _per_channel(step, graph.op("Div", scale, deviation)))}


@rule("LayerNormalization")
def _layer_normalization(step: Step) -> dict[int, str]:
    """Mean and 1/deviation are outputs of the node that exporters leave out."""
    _check_scale(step)
    graph, rank = step.graph, len(step.graph.shape(step.x))
    first = int(step.attribute("axis", -1)) % rank
    mean, inverse = graph.with_output(step.node, 1), graph.with_output(step.node, 2)
    normalised = graph.op("Mul", graph.op("Sub", step.x, mean), inverse)
    gradient = graph.op("Mul", step.gradient, step.node.input[1])
    return {0: _through(step, gradient, normalised, inverse, list(range(first, rank)))}


@rule("InstanceNormalization")
def _instance_normalization(step: Step) -> dict[int, str]:
    _check_scale(step)
    axes = list(range(2, len(step.graph.shape(step.x))))
    normalised, inverse = _normalised(step, step.x, axes)
    gradient = step.graph.op("Mul", step.gradient, _per_channel(step, step.node.input[1]))
    return {0: _through(step, gradient, normalised, inverse, axes)}


@rule("GroupNormalization")
def _group_normalization(step: Step) -> dict[int, str]:
    """As opset 21 has it, with a scale for each channel; before, no graph may hold it."""
    _check_scale(step)
    graph, groups = step.graph, int(step.attribute("num_groups", 1))
    gradient = graph.op("Mul", step.gradient, _per_channel(step, step.node.input[1]))
    grouped = [graph.op("Reshape", value, [0, groups, -1]) for value in (step.x, gradient)]
    normalised, inverse = _normalised(step, grouped[0], [2])
    return {0: graph.reshape_like(_through(step, grouped[1], normalised, inverse, [2]), step.x)}


@rule("LRN")
def _lrn(step: Step) -> dict[int, str]:
    """y = x·D^−β with D = bias + α·(mean of x² over `size` neighbouring channels, zeros beyond the ends).

    ONNX Runtime takes odd sizes only, so what a channel sees is what sees the channel.
    """
    graph, size = step.graph, int(step.attribute("size", 1))
    alpha, beta = float(step.attribute("alpha", 1e-4)), float(step.attribute("beta", 0.75))
    sizes = graph.op("Shape", step.x)
    window = {"kernel_shape": [size, 1], "pads": [size // 2, 0, size // 2, 0], "count_include_pad": 1}

    def mean_of_neighbours(value: str) -> str:
        flat = graph.op("Unsqueeze", graph.op("Reshape", value, [0, 0, -1]), [1])
        return graph.op("Reshape", graph.op("AveragePool", flat, **window), sizes)

    mean = mean_of_neighbours(graph.op("Mul", step.x, step.x))
    base = graph.op("Add", graph.op("Mul", mean, alpha), float(step.attribute("bias", 1.0)))
    own = graph.op("Mul", step.gradient, graph.op("Pow", base, -beta))
    ratio = graph.op("Div", graph.op("Mul", step.gradient, step.y), base)
    others = graph.op("Mul", mean_of_neighbours(ratio), graph.op("Mul", step.x, 2 * alpha * beta))
    return {0: graph.op("Sub", own, others)}


def _check_scale(step: Step) -> None:
    if step.wanted != {0}:
        raise NoRuleError(step.node, "its scale or bias depends on the image")


def _per_channel(step: Step, values: str) -> str:
    """Values [C] that can be multiplied with [N,C,…]."""
    return step.graph.op("Reshape", values, [-1, *[1] * (len(step.graph.shape(step.x)) - 2)])


def _normalised(step: Step, value: str, axes: Sequence[int]) -> tuple[str, str]:
    """x̂ and 1/deviation."""
    graph = step.graph
    centred = graph.op("Sub", value, graph.op("ReduceMean", value, axes, keepdims=1))
    variance = graph.op("ReduceMean", graph.op("Mul", centred, centred), axes, keepdims=1)
    deviation = graph.op("Sqrt", graph.op("Add", variance, float(step.attribute("epsilon", 1e-5))))
    inverse = graph.op("Reciprocal", deviation)
    return graph.op("Mul", centred, inverse), inverse


def _through(step: Step, gradient: str, normalised: str, inverse: str, axes: Sequence[int]) -> str:
    """From the gradient of x̂ to that of x: see the head of this file."""
    graph = step.graph
    mean = graph.op("ReduceMean", gradient, axes, keepdims=1)
    slope = graph.op("ReduceMean", graph.op("Mul", gradient, normalised), axes, keepdims=1)
    rest = graph.op("Sub", graph.op("Sub", gradient, mean), graph.op("Mul", normalised, slope))
    return graph.op("Mul", rest, inverse)
