"""Rules for nodes that move values or cut them out: reshapes, Concat, Split, Slice, Pad, Tile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training.graphs.gradient.builder import NoRuleError
from training.graphs.gradient.rules import Step, rule, scatter

INT32_MAX = 2**31 - 1  # from here on, the end of a Slice means "to the end"


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
    graph, axis = step.graph, int(step.attribute("axis", 0))
    known = [graph.shape(name)[axis] for name in step.node.input]
    if len(known) == 1:
        return {0: step.gradient}
    sizes: list[int] | str = [size for size in known if size is not None]
    if len(sizes) < len(known):
        axis %= len(graph.shape(step.y))
        sizes = graph.op(
            "Concat", *(graph.op("Shape", name, start=axis, end=axis + 1) for name in step.node.input), axis=0
        )
    return dict(enumerate(graph.op_many("Split", len(known), step.gradient, sizes, axis=axis)))


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
    """Zeros around the block that was cut out, and between its elements if it was cut out in steps."""
    cuts = _cuts(step)
    if cuts is not None:
        return {0: _spread(step, cuts)}
    # Bounds known only at run time, or backwards: number the elements and slice these numbers in the same way.
    graph = step.graph
    numbers = graph.op("Range", np.array(0), graph.op("Size", step.x), np.array(1))
    numbered = graph.op("Reshape", numbers, graph.op("Shape", step.x))
    kept = graph.op("Slice", numbered, *step.node.input[1:])
    return {0: scatter(graph, step.gradient, kept, like=step.x)}


@dataclass(frozen=True)
class Cut:
    """What a Slice with fixed bounds takes along one axis."""

    axis: int
    size: int
    positions: range


def _cuts(step: Step) -> list[Cut] | None:
    shape = step.graph.shape(step.x)
    starts, ends, axes, steps = (step.graph.constant(name) for name in (*step.node.input[1:], "", "")[:4])
    if starts is None or ends is None:
        return None
    if (axes is None and step.has_input(3)) or (steps is None and step.has_input(4)):
        return None
    cuts = []
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        axis = (i if axes is None else int(axes[i])) % len(shape)
        stride, size = 1 if steps is None else int(steps[i]), shape[axis]
        if size is None and (start, stride) == (0, 1) and end >= INT32_MAX:
            continue  # all of an axis of unknown size
        if size is None or stride < 1:
            return None
        cuts.append(Cut(axis, size, range(*slice(start, end, stride).indices(size))))
    return cuts


def _spread(step: Step, cuts: list[Cut]) -> str:
    graph, value = step.graph, step.gradient
    rank = len(graph.shape(step.x))
    before, after = [0] * rank, [0] * rank
    for cut in cuts:
        stride, count = cut.positions.step, len(cut.positions)
        if stride > 1:
            # Each element is followed by zeros: an axis of its own, padded to the stride, and joined with its axis.
            apart = graph.op("Unsqueeze", value, [cut.axis + 1])
            apart = graph.op(
                "Pad", apart, [*[0] * (rank + 1), *[0] * (cut.axis + 1), stride - 1, *[0] * (rank - cut.axis - 1)]
            )
            value = _joined(step, apart, value, cut.axis)
        before[cut.axis] = cut.positions.start
        after[cut.axis] = cut.size - cut.positions.start - count * stride  # negative: the last zeros are cut off
    return graph.op("Pad", value, [*before, *after]) if any(before + after) else value


def _joined(step: Step, apart: str, value: str, axis: int) -> str:
    """`apart`, whose axes `axis` and `axis` + 1 become one, has the sizes of `value` along all others."""
    graph = step.graph
    opened = graph.op("ScatterElements", graph.op("Shape", value), np.array([axis]), np.array([-1]), axis=0)
    return graph.op("Reshape", apart, opened)


@rule("Pad")
def _pad(step: Step) -> dict[int, str]:
    """Negative padding cuts off what was added, and gives back zeros for what a negative one cut off."""
    if step.attribute("mode", b"constant") != b"constant":
        raise NoRuleError(step.node, f"its mode is {step.attribute('mode', b'').decode()!r}")
    graph = step.graph
    axes = ["", step.node.input[3]] if step.has_input(3) else []
    return {0: graph.op("Pad", step.gradient, graph.op("Neg", step.node.input[1]), *axes)}


@rule("Tile")
def _tile(step: Step) -> dict[int, str]:
    """Adds up the copies: each axis becomes two, (copy, element), and the copies are summed."""
    graph, rank = step.graph, len(step.graph.shape(step.x))
    pairs = [graph.op("Unsqueeze", sizes, [1]) for sizes in (step.node.input[1], graph.op("Shape", step.x))]
    apart = graph.op("Reshape", step.gradient, graph.op("Reshape", graph.op("Concat", *pairs, axis=1), [-1]))
    return {0: graph.op("ReduceSum", apart, list(range(0, 2 * rank, 2)), keepdims=0)}


@rule("SpaceToDepth")
def _space_to_depth(step: Step) -> dict[int, str]:
    return {0: step.graph.op("DepthToSpace", step.gradient, blocksize=int(step.attribute("blocksize", 1)))}


@rule("DepthToSpace")
def _depth_to_space(step: Step) -> dict[int, str]:
    graph, block = step.graph, int(step.attribute("blocksize", 1))
    if step.attribute("mode", b"DCR") == b"DCR":
        return {0: graph.op("SpaceToDepth", step.gradient, blocksize=block)}
    # CRD is the pixel shuffle: a pixel's place within its block counts within its channel, not before it.
    height, width = step.static_sizes(step.x, [2, 3])
    blocks = graph.op("Reshape", step.gradient, [0, 0, height, block, width, block])
    return {0: graph.reshape_like(graph.op("Transpose", blocks, perm=[0, 1, 3, 5, 2, 4]), step.x)}
