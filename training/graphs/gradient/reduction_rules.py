"""Rules for reductions: sums, means, norms and extremes along axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from training.graphs.gradient.rules import Step, mask, rule


def _reduced_axes(step: Step) -> list[int]:
    rank = len(step.graph.shape(step.x))
    axes = step.constant_input(1)
    if axes is not None and axes.size:
        return [int(axis) % rank for axis in axes]
    return [] if step.attribute("noop_with_empty_axes", 0) else list(range(rank))


def _unreduced(step: Step, value: str, axes: list[int]) -> str:
    """`value` with the reduced axes back in place, at size 1."""
    if step.attribute("keepdims", 1) or not axes:
        return value
    return step.graph.op("Unsqueeze", value, axes)


def share_out(step: Step, value: str, axes: Sequence[int], *, evenly: bool) -> str:
    """Repeat `value`, of size 1 along `axes`, to the shape of the node's input; `evenly` divides it by their number."""
    graph, shape = step.graph, step.graph.shape(step.x)
    sizes = [1] * len(shape)
    for axis in axes:
        size = shape[axis]
        if size is None:
            return _share_out_at_run_time(step, value, axes, evenly=evenly)
        sizes[axis] = size
    # A product repeats its operand as Expand does, and divides on the way.
    share = np.ones(sizes, np.float32)
    return graph.op("Mul", value, share / share.size if evenly else share)


def _share_out_at_run_time(step: Step, value: str, axes: Sequence[int], *, evenly: bool) -> str:
    graph, sizes = step.graph, step.graph.op("Shape", step.x)
    if evenly:
        count = graph.op("ReduceProd", graph.op("Gather", sizes, list(axes)), keepdims=0)
        value = graph.op("Div", value, graph.op("Cast", count, to=graph.elem_type(step.x)))
    return graph.op("Expand", value, sizes)


@rule("ReduceSum")
def _reduce_sum(step: Step) -> dict[int, str]:
    axes = _reduced_axes(step)
    return {0: share_out(step, _unreduced(step, step.gradient, axes), axes, evenly=False)}


@rule("ReduceMean")
def _reduce_mean(step: Step) -> dict[int, str]:
    axes = _reduced_axes(step)
    return {0: share_out(step, _unreduced(step, step.gradient, axes), axes, evenly=True)}


@rule("ReduceMax", "ReduceMin")
def _reduce_extreme(step: Step) -> dict[int, str]:
    """Equal extremes share the gradient, as for torch.amax."""
    graph, axes = step.graph, _reduced_axes(step)
    largest = mask(graph, graph.op("Equal", step.x, _unreduced(step, step.y, axes)))
    share = graph.op("Div", _unreduced(step, step.gradient, axes), graph.op("ReduceSum", largest, axes, keepdims=1))
    return {0: graph.op("Mul", largest, share)}


@rule("ReduceSumSquare")
def _reduce_sum_square(step: Step) -> dict[int, str]:
    graph, gradient = step.graph, _unreduced(step, step.gradient, _reduced_axes(step))
    return {0: graph.op("Mul", gradient, graph.op("Mul", step.x, 2.0))}


@rule("ReduceL1")
def _reduce_l1(step: Step) -> dict[int, str]:
    gradient = _unreduced(step, step.gradient, _reduced_axes(step))
    return {0: step.graph.op("Mul", gradient, step.graph.op("Sign", step.x))}


@rule("ReduceL2")
def _reduce_l2(step: Step) -> dict[int, str]:
    """x divided by its length; zero where the length is zero, as in torch."""
    graph, axes = step.graph, _reduced_axes(step)
    length = _unreduced(step, step.y, axes)
    divisor = graph.op("Where", graph.op("Greater", length, 0.0), length, 1.0)
    return {0: graph.op("Mul", step.x, graph.op("Div", _unreduced(step, step.gradient, axes), divisor))}


@rule("ReduceLogSumExp")
def _reduce_log_sum_exp(step: Step) -> dict[int, str]:
    graph, axes = step.graph, _reduced_axes(step)
    share = graph.op("Exp", graph.op("Sub", step.x, _unreduced(step, step.y, axes)))
    return {0: graph.op("Mul", _unreduced(step, step.gradient, axes), share)}


@rule("GlobalAveragePool")
def _global_average_pool(step: Step) -> dict[int, str]:
    return {0: share_out(step, step.gradient, range(2, len(step.graph.shape(step.x))), evenly=True)}
