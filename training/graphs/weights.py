"""Moves the weights of several graphs into one file beside them, each distinct tensor once.

The forward and the perturbed graph of a bundle hold the same weights; sharing halves the bundle.
"""

import hashlib

import onnx
from onnx import TensorProto, numpy_helper

SMALLEST = 1024  # bytes; smaller tensors stay in the graph, where constant folding can see them
ALIGNMENT = 64


def share_weights(graphs: list[onnx.ModelProto], file_name: str) -> bytes:
    """Makes the large initialisers of all graphs refer to `file_name`, in place; returns that file's content."""
    content = bytearray()
    offsets: dict[bytes, int] = {}
    for graph in graphs:
        for tensor in graph.graph.initializer:
            data = numpy_helper.to_array(tensor).tobytes()
            if len(data) < SMALLEST:
                continue
            key = hashlib.sha256(data).digest()
            if key not in offsets:
                content += bytes(-len(content) % ALIGNMENT)
                offsets[key] = len(content)
                content += data
            _make_external(tensor, file_name, offsets[key], len(data))
    return bytes(content)


def _make_external(tensor: TensorProto, file_name: str, offset: int, length: int) -> None:
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", file_name), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
