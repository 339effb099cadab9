"""The layers of any classifier's graph that a confidence branch reads beside the penultimate features.

    layers = find_layers(onnx.load("model.onnx", load_external_data=False))
    shown, widths = with_branch_input(forward)

A layer is a tensor that every path from the image to the features passes (see `passages`), and either

- the result of an activation: of each one in a plain chain, and of the one after the Add in a residual network; or
- the end of a block, where no activation follows: a residual sum (tokens [N,T,C] of a transformer, maps [N,H,W,C] of
  Swin, [N,C,H,W] of ConvNeXt and MobileNet) or channels put side by side (Inception, the end of a DenseNet block).

What the branch reads of a layer is the mean of each channel. Left out is what would be there twice: a layer whose means
are the features themselves, and one that a later layer holds as a part of its channels. Vectors ([N,C], as between the
linear layers of AlexNet) are no layers.

Cost is bounded: at most MOST_LAYERS layers with at most MOST_CHANNELS channels together. Where there are more, as many
as fit are taken, evenly spaced over the depth from the first to the deepest, which is always among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import onnx
from onnx import TensorProto, helper

from training.graphs.append import Appender
from training.graphs.features import append_features, locate_features, own_copy, shapes_and_types
from training.graphs.gradient.measured_shapes import measured_shapes
from training.graphs.passages import FIRST, LAST, WEIGHTED, Passage, channel_axes, passages_between
from training.graphs.weights import same_weights_as

IMAGE, BRANCH_INPUT = "image", "branch_input"
MOST_LAYERS, MOST_CHANNELS = 12, 4096

_AVERAGING = {"GlobalAveragePool", "ReduceMean", "Flatten", "Reshape", "Squeeze", "Identity", "Dropout", "Cast"}
_AVERAGING |= {"QuantizeLinear", "DequantizeLinear"}
_SCALING = {"Mul", "Div", "Identity", "Dropout", "Cast", "QuantizeLinear", "DequantizeLinear"}
_MEANS = {"GlobalAveragePool", "ReduceMean"}


@dataclass(frozen=True)
class Layer:
    """A tensor [N,C,…], or [N,…,C] with its channels last."""

    name: str
    channels: int
    rank: int
    channels_last: bool
    is_float32: bool


def find_layers(
    model: onnx.ModelProto, most_layers: int = MOST_LAYERS, most_channels: int = MOST_CHANNELS
) -> list[Layer]:
    """In the graph's order. None, if the graph has only vectors between image and features."""
    return _bounded(_all_layers(own_copy(model)), most_layers, most_channels)


def with_branch_input(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[int]]:
    """A copy with one more output, `branch_input` float32 [N, D + sum of C], and D and each C.

    Its other outputs stay as they are: one run gives `logits` and `branch_input`.
    """
    shown = own_copy(model)
    name, widths = append_branch_input(shown)
    shown.graph.node.append(helper.make_node("Identity", [name], [BRANCH_INPUT], name="show_branch_input"))
    shown.graph.output.append(helper.make_tensor_value_info(BRANCH_INPUT, TensorProto.FLOAT, ["N", sum(widths)]))
    return shown, widths


def append_branch_input(model: onnx.ModelProto) -> tuple[str, list[int]]:
    """Appends what a branch reads, in place: the features, then the means of each layer; its name, and their widths.

    Functions must be inlined: see `own_copy`.
    """
    layers = find_layers(model)
    features, size = append_features(model)
    append = Appender(model.graph, "branch")
    read = [features]
    for is_map, group in groupby(layers, lambda layer: layer.rank == 4 and not layer.channels_last):
        names = [_as_float32(append, layer) for layer in group] if is_map else []
        if is_map:
            # ONNX Runtime computes convolutions in blocks of channels. It knows this operator for such blocks; for any
            # other it would put the whole map in order first.
            pooled = [append.op("GlobalAveragePool", [name], "mean") for name in names]
            joined = append.op("Concat", pooled, "means", axis=1) if len(pooled) > 1 else pooled[0]
            read.append(append.op("Flatten", [joined], "flat"))
        else:
            read += [_mean(append, layer) for layer in group]
    joined = append.op("Concat", read, "input", axis=1) if len(read) > 1 else features
    return joined, [size, *(layer.channels for layer in layers)]


def _mean(append: Appender, layer: Layer) -> str:
    axes = range(1, layer.rank - 1) if layer.channels_last else range(2, layer.rank)
    return append.op("ReduceMean", [_as_float32(append, layer), append.int64s("axes", *axes)], "mean", keepdims=0)


def _as_float32(append: Appender, layer: Layer) -> str:
    return layer.name if layer.is_float32 else append.op("Cast", [layer.name], "float32", to=TensorProto.FLOAT)


def _bounded(layers: list[Layer], most_layers: int, most_channels: int) -> list[Layer]:
    for count in range(min(len(layers), most_layers), 1, -1):
        chosen = [layers[i * (len(layers) - 1) // (count - 1)] for i in range(count)]
        if sum(layer.channels for layer in chosen) <= most_channels:
            return chosen
    return layers[-1:]


def _all_layers(model: onnx.ModelProto) -> list[Layer]:
    graph = model.graph
    passages = passages_between(graph, IMAGE, locate_features(model).name)
    names = _names_of_layers(passages)
    names = [_dequantised(graph, name) for name in names]
    shapes, types = shapes_and_types(model)
    missing = [name for name in names if 0 in shapes.get(name, [0])[1:]]
    if missing:
        measured = measured_shapes(_nodes_alone(model), missing)
        shapes |= {name: [size or 0 for size in shape] for name, shape in measured.items()}
    axes = channel_axes(node for passage in passages for node in passage.nodes)
    return [layer for name in names if (layer := _layer(name, axes, shapes, types)) is not None]


def _names_of_layers(passages: Sequence[Passage]) -> list[str]:
    names: list[str] = []
    has_weights = is_open = False  # open: an activation that follows takes the place of the last name
    for passage in passages:
        types = {node.op_type for node in passage.nodes}
        has_weights |= bool(types & WEIGHTED)
        if passage.kind == "merge":
            last = passage.nodes[-1]
            if names and last.op_type == "Concat" and names[-1] in last.input:
                names.pop()  # its channels are among those of the whole
            names.append(passage.end)
        elif passage.kind == "activation" and has_weights:
            names[len(names) - is_open :] = [passage.end]
        elif is_open and types <= _SCALING and names[-1] == passage.start:
            names[-1] = passage.end  # the last factor of an activation: ½ of a GELU, or what quantisation leaves
        is_open = has_weights and (passage.kind in ("merge", "activation") or (is_open and passage.kind == "linear"))
    return names[:-1] if names and _is_averaged(passages, names[-1]) else names


def _is_averaged(passages: Sequence[Passage], name: str) -> bool:
    """Whether the features are this tensor's means."""
    ends = [passage.end for passage in passages]
    after = passages[ends.index(name) + 1 :]
    types = [node.op_type for passage in after for node in passage.nodes]
    return set(types) <= _AVERAGING and sum(op_type in _MEANS for op_type in types) <= 1


def _dequantised(graph: onnx.GraphProto, name: str) -> str:
    """The same tensor as later layers see it, where it is quantised in between."""
    readers = [node for node in graph.node if name in node.input]
    for op_type in ("QuantizeLinear", "DequantizeLinear"):
        if readers and all(node.op_type == op_type for node in readers):
            name = readers[0].output[0]
            readers = [node for node in graph.node if name in node.input]
    return name


def _layer(name: str, axes: dict[str, int], shapes: dict[str, list[int]], types: dict[str, int]) -> Layer | None:
    shape = shapes.get(name, [])
    axis = axes.get(name)
    if len(shape) < 3 or axis not in (FIRST, LAST) or not shape[axis]:
        return None
    is_float32 = types.get(name) == TensorProto.FLOAT
    return Layer(name, shape[axis], len(shape), channels_last=axis == LAST, is_float32=is_float32)


def _nodes_alone(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that may get other outputs."""
    alone = onnx.ModelProto()
    alone.CopyFrom(model)
    same_weights_as(alone, model)
    return alone
