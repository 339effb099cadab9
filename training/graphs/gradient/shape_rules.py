"""Rules for nodes that move, select or average values: reshapes, Concat, Gather, reductions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from training.graphs.gradient.builder import NoRuleError
from training.graphs.gradient.rules import Step, mask, rule, scatter


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(step: Step) -> dict[int, str]:
    return {0: step.graph.reshape_like(step.gradient, step.x)}


@rule("Transpose")
def _transpose(step: Step) -> dict[int, str]:
    rank = len(step.graph.shape(step.x))
    perm = list(step.attribute("perm", list(range(rank))[::-1]))
    return {0: step.graph.op("Transpose", step.gradient, perm=[perm.index(axis) for axis in range(rank)])}


@rule("Expand")
def _expand(step: Step) -> dict[int, str]:
    return {0: step.graph.sum_to(step.gradient, step.graph.shape(step.y), step.x)}


@rule("Concat")
def _concat(step: Step) -> dict[int, str]:
    axis = int(step.attribute("axis", 0))
    sizes = [size for name in step.node.input for size in step.static_sizes(name, [axis])]
    return dict(enumerate(step.graph.op_many("Split", len(sizes), step.gradient, sizes, axis=axis)))


@rule("Split")
def _split(step: Step) -> dict[int, str]:
    """Outputs that do not lead to the score contribute zeros."""
    graph = step.graph
    parts = [
        graph.op("ConstantOfShape", graph.op("Shape", name)) if gradient is None else gradient
        for name, gradient in zip(step.node.output, step.gradients, strict=True)
    ]
    return {0: graph.op("Concat", *parts, axis=int(step.attribute("axis", 0)))}


@rule("Slice")
def _slice(step: Step) -> dict[int, str]:
    padding = _padding_of_block(step)
    if padding is not None:
        return {0: step.graph.op("Pad", step.gradient, padding)}
    # Bounds known only at run time, or steps: number the elements and slice these numbers in the same way.
    graph = step.graph
    numbers = graph.op("Range", np.array(0), graph.op("Size", step.x), np.array(1))
    numbered = graph.op("Reshape", numbers, graph.op("Shape", step.x))
    kept = graph.op("Slice", numbered, *step.node.input[1:])
    return {0: scatter(graph, step.gradient, kept, like=step.x)}


def _padding_of_block(step: Step) -> list[int] | None:
    """The zeros around a block that was sliced at fixed bounds: before and after, along each axis."""
    shape = step.graph.shape(step.x)
    starts, ends, axes, steps = (step.graph.constant(name) for name in (*step.node.input[1:], "", "")[:4])
    if starts is None or ends is None or (steps is not None and (steps != 1).any()):
        return None
    before, after = [0] * len(shape), [0] * len(shape)
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        axis = i if axes is None else int(axes[i])
        size = shape[axis]
        if size is None:
            return None
        first, last, _ = slice(start, end).indices(size)
        before[axis], after[axis] = first, size - last
    return [*before, *after]


@rule("Pad")
def _pad(step: Step) -> dict[int, str]:
    if step.attribute("mode", b"constant") != b"constant":
        raise NoRuleError(step.node, f"its mode is {step.attribute('mode', b'')!r}")
    graph, pads = step.graph, step.node.input[1]
    sizes = graph.op("Shape", step.x)
    axes = [step.node.input[3]] if step.has_input(3) else []
    if axes:
        sizes = graph.op("Gather", sizes, *axes)
    before = graph.op("Slice", pads, [0], graph.op("Shape", sizes))
    return {0: graph.op("Slice", step.gradient, before, graph.op("Add", before, sizes), *axes)}


@rule("Gather")
def _gather(step: Step) -> dict[int, str]:
    """Elements may be gathered twice, so their gradients are added up where they came from."""
    graph, indices = step.graph, step.node.input[1]
    rank, rank_indices = len(graph.shape(step.x)), len(graph.shape(indices))
    axis = int(step.attribute("axis", 0)) % rank
    # ScatterElements wants indices of the gradient's shape: aligned with its axes, then repeated along the others.
    aligned = graph.op("Unsqueeze", indices, [*range(axis), *range(axis + rank_indices, rank + rank_indices - 1)])
    if rank > 1:
        aligned = graph.op("Expand", aligned, graph.op("Shape", step.y))
    # The index's axes become one, by the shape of the input with that axis left open.
    sizes = graph.op("Shape", step.x)
    target = graph.op("ScatterElements", sizes, np.array([axis]), np.array([-1]), axis=0)
    zeros = graph.op("ConstantOfShape", sizes)
    updates, places = (graph.op("Reshape", value, target) for value in (step.gradient, aligned))
    return {0: graph.op("ScatterElements", zeros, places, updates, axis=axis, reduction="add")}


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
    sizes = [1] * len(step.graph.shape(step.x))
    for axis, size in zip(axes, step.static_sizes(step.x, axes), strict=True):
        sizes[axis] = size
    # A product repeats its operand as Expand does, and divides on the way.
    share = np.ones(sizes, np.float32)
    return step.graph.op("Mul", value, share / share.size if evenly else share)


@rule("ReduceSum")
def _reduce_sum(step: Step) -> dict[int, str]:
    axes = _reduced_axes(step)
    return {0: share_out(step, _unreduced(step, step.gradient, axes), axes, evenly=False)}


@rule("ReduceMean")
def _reduce_mean(step: Step) -> dict[int, str]:
    axes = _reduced_axes(step)
    return {0: share_out(step, _unreduced(step, step.gradient, axes), axes, evenly=True)}


@rule("ReduceMax")
def _reduce_max(step: Step) -> dict[int, str]:
    """Equal maxima share the gradient, as for torch.amax."""
    graph, axes = step.graph, _reduced_axes(step)
    largest = mask(graph, graph.op("Equal", step.x, _unreduced(step, step.y, axes)))
    share = graph.op("Div", _unreduced(step, step.gradient, axes), graph.op("ReduceSum", largest, axes, keepdims=1))
    return {0: graph.op("Mul", largest, share)}
