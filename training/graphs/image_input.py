"""The contract's input in front of a graph exported here: `image` uint8 [N,H,W,3] in place of its float input.

The conversion from uint8 pixels ends in a tensor that is always called `normalised`: the input gradient starts there.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 18
NORMALISED = "normalised"
CHANNELS = (1, 3, 1, 1)  # the shape of a constant with one number for each channel


def with_image_input(model: onnx.ModelProto, mean: Sequence[float], std: Sequence[float]) -> onnx.ModelProto:
    """Replaces the float input [N,3,H,W] with `image` uint8 [N,H,W,3] and adds the normalisation to the graph."""
    graph = model.graph
    old = graph.input[0].name
    height, width = (dimension.dim_value for dimension in graph.input[0].type.tensor_type.shape.dim[2:])
    for node in graph.node:
        node.input[:] = [NORMALISED if name == old else name for name in node.input]
    scale = (1 / (255 * np.asarray(std, np.float64))).astype(np.float32).reshape(CHANNELS)
    shift = (-np.asarray(mean, np.float64) / np.asarray(std, np.float64)).astype(np.float32).reshape(CHANNELS)
    graph.initializer.extend(
        [numpy_helper.from_array(scale, "pixel_scale"), numpy_helper.from_array(shift, "pixel_shift")]
    )
    # Channels first, as bytes: ONNX Runtime scales runs of one channel four times as fast as triples (224×224 pixels).
    front = [
        helper.make_node("Transpose", ["image"], ["planes"], name="channels_first", perm=[0, 3, 1, 2]),
        helper.make_node("Cast", ["planes"], ["pixels"], name="to_float", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["pixels", "pixel_scale"], ["scaled_pixels"], name="scale_pixels"),
        helper.make_node("Add", ["scaled_pixels", "pixel_shift"], [NORMALISED], name="shift_pixels"),
    ]
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend(front + rest)
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", height, width, 3]))
    forget_traces(model)
    onnx.checker.check_model(model, full_check=True)
    return model


def forget_traces(model: onnx.ModelProto) -> None:
    """Drops the exporter's notes: they hold stack traces with file names of this machine."""
    model.doc_string = ""
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for initializer in model.graph.initializer:
        del initializer.metadata_props[:]
