"""How many images a graph may process at once: as many as its intermediate tensors leave room for.

A graph from elsewhere may be of any size: EfficientNet-Lite0 needs 10 MB for each image of 224 pixels, its perturbed
graph 50 MB.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from training.graphs.measured_shapes import IMAGE, UNMEASURABLE, read_by, read_structure, shapes_of_one_image

ACTIVATION_BYTES = 256 * 2**20  # what the intermediate tensors of one batch may take
MOST_FORWARD = 250
MOST_PERTURBED = 50
UNKNOWN_BYTES = 4  # for each value of a tensor whose type is not known: most are float32


def images_at_once(model: onnx.ModelProto | Path, most: int, budget: int = ACTIVATION_BYTES) -> int:
    """At least one image, and at most `most`; one where the graph does not run with every tensor's shape asked for."""
    try:
        needed = bytes_of_one_image(model)
    except UNMEASURABLE:
        return 1  # opening the graph either works or raises the right error
    return max(1, min(most, budget // max(needed, 1)))


def bytes_of_one_image(model: onnx.ModelProto | Path) -> int:
    """The most that the intermediate tensors of one image take together, each until its last use."""
    known, folder = read_structure(model)
    sizes = _sizes(known, folder)
    last_use = {name: index for index, node in enumerate(known.graph.node) for name in read_by(node)}
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


def _sizes(model: onnx.ModelProto, folder: Path | None) -> Mapping[str, int]:
    """The bytes of the image and of every tensor that a node makes, for one image."""
    shapes = shapes_of_one_image(model, folder)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}
    types[IMAGE] = TensorProto.UINT8
    return {name: prod(shape) * _bytes_of(types.get(name, TensorProto.UNDEFINED)) for name, shape in shapes.items()}


def _bytes_of(element_type: int) -> int:
    if element_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return UNKNOWN_BYTES
    return int(helper.tensor_dtype_to_np_dtype(element_type).itemsize)
