"""Rules for nodes that pick elements by index: Gather and Scatter in their three forms."""

from __future__ import annotations

import numpy as np

from training.graphs.gradient.builder import NoRuleError
from training.graphs.gradient.rules import Step, rule


@rule("Gather")
def _gather(step: Step) -> dict[int, str]:
    """Elements may be gathered twice, so their gradients are added up where they came from."""
    graph, indices = step.graph, step.node.input[1]
    rank, rank_indices = len(graph.shape(step.x)), len(graph.shape(indices))
    axis = int(step.attribute("axis", 0)) % rank
    if 1 in step.wanted:
        raise NoRuleError(step.node, "its indices depend on the image")
    known = _each_once(step, axis)
    if known is not None:
        return {0: known}
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


def _each_once(step: Step, axis: int) -> str | None:
    """The quick ways for fixed indices: one element, or all of them in another order."""
    graph, (size,) = step.graph, step.graph.shape(step.x)[axis : axis + 1]
    indices = graph.constant(step.node.input[1])
    if indices is None or size is None:
        return None
    places = np.where(indices < 0, indices + size, indices)
    if places.size == 1 and places.ndim <= 1:
        rank, place = len(graph.shape(step.x)), int(places.item())
        value = step.gradient if places.ndim else graph.op("Unsqueeze", step.gradient, [axis])
        pads = [0] * 2 * rank
        pads[axis], pads[rank + axis] = place, size - 1 - place
        return graph.op("Pad", value, pads)
    if places.ndim == 1 and np.array_equal(np.sort(places), np.arange(size)):
        return graph.op("Gather", step.gradient, np.argsort(places), axis=axis)
    return None


@rule("GatherElements")
def _gather_elements(step: Step) -> dict[int, str]:
    zeros = step.graph.op("ConstantOfShape", step.graph.op("Shape", step.x))
    axis = int(step.attribute("axis", 0))
    summed = step.graph.op("ScatterElements", zeros, step.node.input[1], step.gradient, axis=axis, reduction="add")
    return {0: summed}


@rule("GatherND")
def _gather_nd(step: Step) -> dict[int, str]:
    if step.attribute("batch_dims", 0):
        raise NoRuleError(step.node, "it gathers from each image by itself (batch_dims)")
    zeros = step.graph.op("ConstantOfShape", step.graph.op("Shape", step.x))
    return {0: step.graph.op("ScatterND", zeros, step.node.input[1], step.gradient, reduction="add")}


@rule("ScatterElements")
def _scatter_elements(step: Step) -> dict[int, str]:
    graph, places, axis = step.graph, step.node.input[1], int(step.attribute("axis", 0))
    _check_replaces(step)
    out: dict[int, str] = {}
    if 0 in step.wanted:
        zeros = graph.op("ConstantOfShape", graph.op("Shape", places))
        out[0] = graph.op("ScatterElements", step.gradient, places, zeros, axis=axis)
    if 2 in step.wanted:
        out[2] = graph.op("GatherElements", step.gradient, places, axis=axis)
    return out


@rule("ScatterND")
def _scatter_nd(step: Step) -> dict[int, str]:
    """What was overwritten gets no gradient; what was written gets that of its place."""
    graph, (_, places, updates) = step.graph, step.node.input
    _check_replaces(step)
    out: dict[int, str] = {}
    if 0 in step.wanted:
        zeros = graph.op("ConstantOfShape", graph.op("Shape", updates))
        out[0] = graph.op("ScatterND", step.gradient, places, zeros)
    if 2 in step.wanted:
        out[2] = graph.op("GatherND", step.gradient, places)
    return out


def _check_replaces(step: Step) -> None:
    reduction = step.attribute("reduction", b"none")
    if reduction != b"none":
        raise NoRuleError(step.node, f"its reduction is {reduction.decode()!r}")
