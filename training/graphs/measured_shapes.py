"""The shape of every tensor in a graph, for one image.

Shape inference does not tell: one exporter's padding is enough to leave half of the shapes open. So the graph runs
once, for one black image, and returns the shape of every tensor in it instead of the tensors.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper
from onnx.shape_inference import InferenceError

from service.model.session import RUNTIME_ERRORS
from training.graphs.weights import find_weights, weights_folder

# What a graph raises that cannot be read, or does not run with every shape asked for.
UNMEASURABLE = (OSError, DecodeError, InferenceError, LookupError, StopIteration, *RUNTIME_ERRORS)
SHAPE_OF = "shape_of/"
IMAGE, EPSILON = "image", "epsilon"

Shape = tuple[int, ...]


def read_structure(model: onnx.ModelProto | Path) -> tuple[onnx.ModelProto, Path | None]:
    """The graph without weights that lie in a file beside it, and the folder of that file."""
    if isinstance(model, Path):
        return onnx.load(model, load_external_data=False), model.parent
    return model, weights_folder(model)


def shapes_of_one_image(model: onnx.ModelProto, folder: Path | None) -> Mapping[str, Shape]:
    """Of the image and of every tensor that a node makes."""
    names = [name for node in model.graph.node for name in node.output if name]
    measured = onnx.ModelProto()
    measured.CopyFrom(model)
    graph = measured.graph
    graph.node.extend(helper.make_node("Shape", [name], [SHAPE_OF + name]) for name in names)
    del graph.output[:]
    graph.output.extend(helper.make_tensor_value_info(SHAPE_OF + name, TensorProto.INT64, None) for name in names)
    image = next(value for value in graph.input if value.name == IMAGE)
    height, width = (dimension.dim_value for dimension in image.type.tensor_type.shape.dim[1:3])
    inputs: dict[str, np.ndarray] = {IMAGE: np.zeros((1, height, width, 3), np.uint8)}
    if any(value.name == EPSILON for value in graph.input):
        inputs[EPSILON] = np.zeros((), np.float32)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Each shape is read as soon as its tensor exists: at the end, all tensors would be in memory together.
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.enable_mem_pattern = False
    options.log_severity_level = 4  # a graph that does not open this way has its own message elsewhere
    options.add_session_config_entry("session.disable_prepacking", "1")  # it would hold all weights twice for one run
    find_weights(options, folder)
    session = onnxruntime.InferenceSession(measured.SerializeToString(), options, providers=["CPUExecutionProvider"])
    shapes = session.run([SHAPE_OF + name for name in names], inputs)
    found = {name: tuple(shape.tolist()) for name, shape in zip(names, shapes, strict=True)}
    return {IMAGE: inputs[IMAGE].shape, **found}


def read_by(node: onnx.NodeProto) -> Iterable[str]:
    """What a node reads, and what the bodies of its loops and conditions read."""
    yield from node.input
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                yield from read_by(inner)
