"""The contract's input in front of a foreign graph: `image` uint8 [N,H,W,3] in place of its own."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from training.graphs.foreign.image import ImageTensor
from training.graphs.foreign.preprocessing import AVERAGE_PIXEL, SPREAD_OF_PIXELS, Preprocessing
from training.graphs.image_input import CHANNELS, NORMALISED


def put_image_in_front(
    model: onnx.ModelProto, image: ImageTensor, preprocessing: Preprocessing, batch: int | str
) -> None:
    """Replaces the graph's input, in place. The gradient of ODIN starts at the tensor `normalised`."""
    graph, front = model.graph, _Front(model.graph)
    pixels = "image"
    reads_bytes = image.elem_type == TensorProto.UINT8  # then it normalises them itself
    channel_axis = 3
    if image.layout == "nchw" or not reads_bytes:
        # Bytes are cheap to transpose, and what follows is fast on channels that lie apart.
        pixels, channel_axis = front.add("Transpose", [pixels], "channels_first", perm=[0, 3, 1, 2]), 1
    if preprocessing.channels == "bgr":
        reverse = front.constant("channels_reversed", np.array([2, 1, 0], np.int64))
        pixels = front.add("Gather", [pixels, reverse], "blue_green_red", axis=channel_axis)
    if not reads_bytes:
        pixels = _normalise(front, front.add("Cast", [pixels], "pixels", to=TensorProto.FLOAT), preprocessing)
        if image.layout == "nhwc":
            pixels = front.add("Transpose", [pixels], "channels_last", perm=[0, 2, 3, 1])
    if image.elem_type not in (TensorProto.UINT8, TensorProto.FLOAT):
        pixels = front.add("Cast", [pixels], "own_type", to=image.elem_type)
    rename(graph, {graph.input[0].name: pixels})
    rest = list(graph.node)
    del graph.node[:], graph.input[:]
    graph.node.extend([*front.nodes, *rest])
    shape = [batch, image.height, image.width, 3]
    graph.input.append(helper.make_tensor_value_info("image", TensorProto.UINT8, shape))


def _normalise(front: "_Front", pixels: str, preprocessing: Preprocessing) -> str:
    """Where the graph's own range is unusual, `normalised` has the usual one, and what follows changes it."""
    scale, shift = preprocessing.scale, preprocessing.shift
    if preprocessing.is_normalised:
        return _affine(front, pixels, scale, shift, "usual", NORMALISED)
    usual = np.full(3, 1 / SPREAD_OF_PIXELS), np.full(3, -AVERAGE_PIXEL / SPREAD_OF_PIXELS)
    pixels = _affine(front, pixels, *usual, "usual", NORMALISED)
    return _affine(front, pixels, SPREAD_OF_PIXELS * scale, AVERAGE_PIXEL * scale + shift, "own", "own_range")


def _affine(
    front: "_Front", pixels: str, scale: NDArray[np.float64], shift: NDArray[np.float64], stem: str, result: str
) -> str:
    by = front.constant(f"{stem}_scale", scale.astype(np.float32).reshape(CHANNELS))
    to = front.constant(f"{stem}_shift", shift.astype(np.float32).reshape(CHANNELS))
    return front.add("Add", [front.add("Mul", [pixels, by], f"{stem}_scaled"), to], result)


class _Front:
    """Nodes that come before those of the graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.nodes: list[onnx.NodeProto] = []

    def add(self, op_type: str, inputs: list[str], stem: str, **attributes: Any) -> str:
        name = stem if stem == NORMALISED else f"front/{stem}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=f"front/{stem}", **attributes))
        return name

    def constant(self, stem: str, values: NDArray[Any]) -> str:
        self.graph.initializer.append(numpy_helper.from_array(values, f"front/{stem}"))
        return f"front/{stem}"


def rename(graph: onnx.GraphProto, new_names: dict[str, str]) -> None:
    """Gives tensors other names, wherever nodes read or write them, also in the branches and loops of a graph."""
    for node in graph.node:
        node.input[:] = [new_names.get(name, name) for name in node.input]
        node.output[:] = [new_names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                rename(inner, new_names)
    for named in (*graph.initializer, *graph.value_info):
        named.name = new_names.get(named.name, named.name)
