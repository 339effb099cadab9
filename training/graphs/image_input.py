"""The contract's input in front of a classifier's graph: `image` uint8 [N,H,W,3] in place of its float input.

The conversion from uint8 pixels ends in a tensor that is always called `normalised`: the input gradient starts there.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from training.errors import ExportError

Layout = Literal["nchw", "nhwc"]

OPSET = 18
NORMALISED = "normalised"


def with_image_input(
    model: onnx.ModelProto, mean: Sequence[float], std: Sequence[float], layout: Layout = "nchw"
) -> onnx.ModelProto:
    """Replaces the float image input with `image` uint8 [N,H,W,3] and adds the normalisation to the graph."""
    graph = model.graph
    height, width = image_size(model, layout)
    taken = {tensor.name for tensor in graph.initializer} & {"pixel_scale", "pixel_shift"}
    if taken:
        raise ExportError(
            f"the graph already has a tensor {min(taken)!r}, as graphs of confgate bundles have: import the classifier "
            "as it was before, with its float input."
        )
    old = graph.input[0].name
    for node in graph.node:
        node.input[:] = [NORMALISED if name == old else name for name in node.input]
    scale = (1 / (255 * np.asarray(std, np.float64))).astype(np.float32).reshape(1, 1, 1, 3)
    shift = (-np.asarray(mean, np.float64) / np.asarray(std, np.float64)).astype(np.float32).reshape(1, 1, 1, 3)
    graph.initializer.extend(
        [numpy_helper.from_array(scale, "pixel_scale"), numpy_helper.from_array(shift, "pixel_shift")]
    )
    front = [
        helper.make_node("Cast", ["image"], ["pixels"], name="to_float", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["pixels", "pixel_scale"], ["scaled_pixels"], name="scale_pixels"),
    ]
    shifted = "shifted_pixels" if layout == "nchw" else NORMALISED
    front.append(helper.make_node("Add", ["scaled_pixels", "pixel_shift"], [shifted], name="shift_pixels"))
    if layout == "nchw":
        front.append(helper.make_node("Transpose", [shifted], [NORMALISED], name="channels_first", perm=[0, 3, 1, 2]))
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend(front + rest)
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", height, width, 3]))
    _forget_traces(model)
    onnx.checker.check_model(model, full_check=True)
    return model


def image_size(model: onnx.ModelProto, layout: Layout) -> tuple[int, int]:
    """Height and width of the only input, an image of three channels; both must be fixed."""
    if len(model.graph.input) != 1:
        names = [value.name for value in model.graph.input]
        raise ExportError(f"the graph has the inputs {names}, expected one image tensor.")
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    expected = "[N,3,H,W]" if layout == "nchw" else "[N,H,W,3]"
    channels, height, width = (1, 2, 3) if layout == "nchw" else (3, 1, 2)
    if len(shape) != 4 or shape[channels] != 3 or not shape[height] or not shape[width]:
        raise ExportError(f"the graph's input has shape {shape}, expected {expected} with fixed H and W.")
    return shape[height], shape[width]


def _forget_traces(model: onnx.ModelProto) -> None:
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
