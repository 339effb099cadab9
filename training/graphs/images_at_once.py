"""How many images a graph may process at once: as many as its intermediate tensors leave room for.

A graph from elsewhere may be of any size: EfficientNet-Lite0 needs 10 MB for each image of 224 pixels, its perturbed
graph 50 MB. Shape inference does not tell: one exporter's padding is enough to leave half of the shapes open. So the
graph runs once, for one black image, and returns the shape of every tensor in it instead of the tensors.
"""

from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper
from onnx.shape_inference import InferenceError

from service.model.session import RUNTIME_ERRORS
from training.graphs.weights import find_weights, weights_folder

ACTIVATION_BYTES = 256 * 2**20  # what the intermediate tensors of one batch may take
MOST_FORWARD = 250
MOST_PERTURBED = 50
UNKNOWN_BYTES = 4  # for each value of a tensor whose type is not known: most are float32
SHAPE_OF = "shape_of/"
IMAGE, EPSILON = "image", "epsilon"


def images_at_once(model: onnx.ModelProto | Path, most: int, budget: int = ACTIVATION_BYTES) -> int:
    """At least one image, and at most `most`; one where the graph does not run with every tensor's shape asked for."""
    try:
        needed = bytes_of_one_image(model)
    except (OSError, DecodeError, InferenceError, LookupError, StopIteration, *RUNTIME_ERRORS):
        return 1  # opening the graph either works or raises the right error
    return max(1, min(most, budget // max(needed, 1)))


def bytes_of_one_image(model: onnx.ModelProto | Path) -> int:
    """The most that the intermediate tensors of one image take together, each until its last use."""
    folder = model.parent if isinstance(model, Path) else weights_folder(model)
    # Without its weights: those in a file beside the graph are only read by the session.
    known = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model
    sizes = _sizes(known, folder)
    last_use = {name: index for index, node in enumerate(known.graph.node) for name in _read(node)}
    kept = {value.name for value in known.graph.output}
    ends: dict[int, list[str]] = {}
    for name, index in last_use.items():
        ends.setdefault(index, []).append(name)
    now = most = sizes.get(IMAGE, 0)
    for index, node in enumerate(known.graph.node):
        now += sum(sizes.get(name, 0) for name in node.output)
        most = max(most, now)
        gone = [name for name in ends.get(index, []) if name not in kept]
        gone += [name for name in node.output if name not in last_use and name not in kept]
        now -= sum(sizes.get(name, 0) for name in gone)
    return most


def _read(node: onnx.NodeProto) -> Iterable[str]:
    """What a node reads, and what the bodies of its loops and conditions read."""
    yield from node.input
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                yield from _read(inner)


def _sizes(model: onnx.ModelProto, folder: Path | None) -> Mapping[str, int]:
    """The bytes of the image and of every tensor that a node makes, for one image."""
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
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}
    found = {
        name: prod(shape.tolist()) * _bytes_of(types.get(name, TensorProto.UNDEFINED))
        for name, shape in zip(names, shapes, strict=True)
    }
    return {IMAGE: inputs[IMAGE].nbytes, **found}


def _bytes_of(element_type: int) -> int:
    if element_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return UNKNOWN_BYTES
    return int(helper.tensor_dtype_to_np_dtype(element_type).itemsize)
