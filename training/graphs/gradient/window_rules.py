"""Rules for nodes that slide a window over the image: convolution and pooling.

The gradient of a convolution is a convolution too. With stride 1 it is an ordinary one with the kernel turned by 180°
and its two channel axes exchanged, which ONNX Runtime computes as quickly as the forward one; ConvTranspose, which
takes the weights as they are, is left for the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from training.graphs.gradient.builder import NoRuleError
from training.graphs.gradient.rules import Step, mask, rule, scatter

# ConvTranspose took a third of the convolution's time with 3 input channels, and more than it with 24.
MIN_CHANNELS_FOR_CONV = 8
# On the smallest maps there is little to gain, and one ScatterElements is simpler than a dozen nodes.
MIN_PIXELS_FOR_TILES = 16
INT64_MIN = -(2**63)


@dataclass(frozen=True)
class Window:
    """The geometry of a sliding window, each list with one entry per spatial axis."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads_before: list[int]
    pads_after: list[int]
    input_sizes: list[int]
    output_sizes: list[int]

    @classmethod
    def of(cls, step: Step, kernel: list[int]) -> Window:
        n = len(kernel)
        sizes = [step.static_sizes(name, range(2, 2 + n)) for name in (step.x, step.y)]
        strides = list(step.attribute("strides", [1] * n))
        dilations = list(step.attribute("dilations", [1] * n))
        extent = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
        auto_pad = step.attribute("auto_pad", b"NOTSET")
        pads = list(step.attribute("pads", [0] * 2 * n))
        if auto_pad in (b"SAME_UPPER", b"SAME_LOWER"):
            total = [max(0, (o - 1) * s + e - i) for i, o, s, e in zip(*sizes, strides, extent, strict=True)]
            smaller, larger = [t // 2 for t in total], [t - t // 2 for t in total]
            pads = smaller + larger if auto_pad == b"SAME_UPPER" else larger + smaller
        return cls(kernel, strides, dilations, pads[:n], pads[n:], *sizes)

    @property
    def extent(self) -> list[int]:
        return [d * (k - 1) + 1 for d, k in zip(self.dilations, self.kernel, strict=True)]

    @property
    def overlaps(self) -> bool:
        return any(s < e for s, e in zip(self.strides, self.extent, strict=True))

    def transposed(self) -> dict[str, list[int]]:
        """Attributes of the ConvTranspose that leads back to exactly the input's size."""
        covered = [(o - 1) * s + e for o, s, e in zip(self.output_sizes, self.strides, self.extent, strict=True)]
        excess = [c - b - i for c, b, i in zip(covered, self.pads_before, self.input_sizes, strict=True)]
        return {
            "kernel_shape": self.kernel,
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": [*self.pads_before, *(max(0, e) for e in excess)],
            "output_padding": [max(0, -e) for e in excess],
        }


@rule("Conv")
def _conv(step: Step) -> dict[int, str]:
    if step.wanted != {0}:
        raise NoRuleError(step.node, "its kernel depends on the image")
    graph, weight = step.graph, step.node.input[1]
    c_out, c_in_per_group, *kernel = step.static_sizes(weight, range(len(step.graph.shape(weight))))
    window = Window.of(step, kernel)
    group = int(step.attribute("group", 1))
    full_pads = [e - 1 - p for p, e in zip(window.pads_before + window.pads_after, window.extent * 2, strict=True)]
    as_conv = set(window.strides) == {1} and min(full_pads) >= 0 and c_in_per_group * group >= MIN_CHANNELS_FOR_CONV
    if not as_conv:
        return {0: graph.op("ConvTranspose", step.gradient, weight, group=group, **window.transposed())}

    if any(size > 1 for size in kernel):
        axes = list(range(2, 2 + len(kernel)))
        backwards = [-1] * len(kernel)
        weight = graph.op("Slice", weight, backwards, [INT64_MIN] * len(kernel), axes, backwards)
    if group == 1:
        weight = graph.op("Transpose", weight, perm=[1, 0, *range(2, 2 + len(kernel))])
    elif c_in_per_group > 1 or c_out > group:
        grouped = graph.op("Reshape", weight, [group, c_out // group, c_in_per_group, *kernel])
        exchanged = graph.op("Transpose", grouped, perm=[0, 2, 1, *range(3, 3 + len(kernel))])
        weight = graph.op("Reshape", exchanged, [group * c_in_per_group, c_out // group, *kernel])
    gradient = graph.op(
        "Conv",
        step.gradient,
        weight,
        group=group,
        kernel_shape=kernel,
        pads=full_pads,
        strides=window.strides,
        dilations=window.dilations,
    )
    return {0: gradient}


@rule("ConvTranspose")
def _conv_transpose(step: Step) -> dict[int, str]:
    """The convolution that it transposes."""
    if step.wanted != {0}:
        raise NoRuleError(step.node, "its kernel depends on the image")
    if step.attribute("auto_pad", b"NOTSET") != b"NOTSET" or step.attribute("output_shape", None):
        raise NoRuleError(step.node, "its padding is not given as pads")
    names = ("pads", "strides", "dilations", "group")
    geometry = {name: value for name in names if (value := step.attribute(name, None)) is not None}
    return {0: step.graph.op("Conv", step.gradient, step.node.input[1], **geometry)}


@rule("MaxPool")
def _max_pool(step: Step) -> dict[int, str]:
    """The gradient goes back to where the maximum was: the first one, if several are equal, as in torch."""
    window = Window.of(step, list(step.attribute("kernel_shape", [])))
    sizes = zip(window.output_sizes, window.strides, window.input_sizes, strict=True)
    tiles = window.kernel == window.strides == window.extent and not any(window.pads_before + window.pads_after)
    if tiles and all(o * s <= i for o, s, i in sizes) and math.prod(window.input_sizes) >= MIN_PIXELS_FOR_TILES:
        return {0: _spread_over_tiles(step, window)}
    return {0: _scatter_to_indices(step, window)}


def _spread_over_tiles(step: Step, window: Window) -> str:
    """For windows that tile the image: enlarge the pooled values to the image's size and compare.

    On the CPU this is faster than MaxPool with its indices, which takes ten times as long (onnxruntime 1.31).
    """
    graph, tiled = step.graph, [o * s for o, s in zip(window.output_sizes, window.strides, strict=True)]
    rest = [i - t for i, t in zip(window.input_sizes, tiled, strict=True)]
    axes = list(range(2, 2 + len(tiled)))
    x = graph.op("Slice", step.x, [0] * len(tiled), tiled, axes) if any(rest) else step.x

    def enlarged(value: str) -> str:
        scales = np.array([1, 1, *window.strides], np.float32)
        nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return graph.op("Resize", value, "", scales, **nearest)

    # Among equal maxima the one with the highest rank wins, and ranks fall from the window's first element on.
    ranks = np.arange(math.prod(window.kernel), 0, -1, dtype=np.float32).reshape(window.kernel)
    ranks = np.tile(ranks, window.output_sizes)
    candidates = graph.op("Mul", mask(graph, graph.op("Equal", x, enlarged(step.y))), ranks)
    winner = graph.op("MaxPool", candidates, kernel_shape=window.kernel, strides=window.strides)
    chosen = mask(graph, graph.op("Equal", candidates, enlarged(winner)))
    gradient = graph.op("Mul", chosen, enlarged(step.gradient))
    return graph.op("Pad", gradient, [0] * (4 + len(tiled)) + rest) if any(rest) else gradient


def _scatter_to_indices(step: Step, window: Window) -> str:
    if step.attribute("storage_order", 0):
        raise NoRuleError(step.node, "its indices count by columns")
    indices = step.graph.with_output(step.node, 1)
    # Overlapping windows can choose the same element, so their gradients add up; others need only a write.
    reduction = "add" if window.overlaps else "none"
    return scatter(step.graph, step.gradient, indices, like=step.x, reduction=reduction)


@rule("GlobalMaxPool")
def _global_max_pool(step: Step) -> dict[int, str]:
    graph = step.graph
    flat = graph.op("Reshape", step.x, [0, 0, -1])
    first = graph.op("ArgMax", flat, axis=2, keepdims=1)
    gradient = graph.op("Reshape", step.gradient, [0, 0, 1])
    zeros = graph.op("ConstantOfShape", graph.op("Shape", flat))
    scattered = graph.op("ScatterElements", zeros, first, gradient, axis=2)
    return {0: graph.reshape_like(scattered, step.x)}


@rule("AveragePool")
def _average_pool(step: Step) -> dict[int, str]:
    """Each output's gradient, divided by the number of elements averaged, added to every element of its window."""
    graph = step.graph
    window = Window.of(step, list(step.attribute("kernel_shape", [])))
    counts = _elements_per_window(window, bool(step.attribute("count_include_pad", 0)))
    share = graph.op("Mul", step.gradient, (1 / counts).astype(np.float32))
    # One channel at a time: a kernel of ones with as many groups as channels would be slower.
    single = graph.op("Reshape", share, [-1, 1, *window.output_sizes])
    ones = np.ones((1, 1, *window.kernel), np.float32)
    spread = graph.op("ConvTranspose", single, ones, **window.transposed())
    return {0: graph.reshape_like(spread, step.x)}


def _elements_per_window(window: Window, count_padding: bool) -> np.ndarray:
    """One factor per axis; an axis counts what lies inside the image, or inside image and padding."""
    counts = np.ones(())
    for axis in range(len(window.kernel)):
        before, after = window.pads_before[axis], window.pads_after[axis]
        low, high = (-before, window.input_sizes[axis] + after) if count_padding else (0, window.input_sizes[axis])
        starts = np.arange(window.output_sizes[axis])[:, None] * window.strides[axis] - before
        positions = starts + np.arange(window.kernel[axis]) * window.dilations[axis]
        counts = np.multiply.outer(counts, ((positions >= low) & (positions < high)).sum(1))
    return counts
