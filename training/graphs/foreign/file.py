"""A file that may be an ONNX graph: read, with weights that are not listed as inputs and functions that are inlined."""

from math import prod
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper
from onnx.inliner import inline_local_functions

from training.errors import ExportError
from training.graphs.weights import move_large_weights

MOST_OF_A_TENSOR = 2**31 - 2**20  # bytes: protobuf's limit, with room for what else the tensor says

# The first bytes of files that people have instead of an ONNX graph, and how they become one.
OTHER_FORMATS = (
    (0, b"PK\x03\x04", "a PyTorch (or another zip) file. Export the network with torch.onnx.export"),
    (0, b"\x80\x02", "a Python pickle, as PyTorch writes. Export the network with torch.onnx.export"),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes. Convert it with tf2onnx"),
    (4, b"TFL3", "a TensorFlow Lite file. Convert it with tf2onnx --tflite"),
)


def read_file(path: Path, weights: Path) -> onnx.ModelProto:
    """The model; its only inputs are those that have no value of their own. Large weights move to the folder."""
    model = _parse(path, weights)
    graph = model.graph
    given = {tensor.name for tensor in graph.initializer} | {tensor.values.name for tensor in graph.sparse_initializer}
    inputs = [value for value in graph.input if value.name not in given]  # before IR 4 every weight was an input too
    del graph.input[:]
    graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 8)
    return inline_local_functions(model) if model.functions else model


def _parse(path: Path, weights: Path) -> onnx.ModelProto:
    if path.is_dir():
        raise ExportError(f"{path} is a folder, expected one .onnx file. Convert a SavedModel with tf2onnx.")
    try:
        with path.open("rb") as file:
            start = file.read(16)
        _check_format(path, start)
        model = onnx.load(path, load_external_data=False)
    except OSError as problem:
        raise ExportError(f"{path} cannot be read ({problem.strerror}). Name an .onnx file.") from problem
    except DecodeError as problem:
        raise ExportError(f"{path} is not an ONNX model ({problem}). Name an .onnx file.") from problem
    if not model.graph.node:
        raise ExportError(f"{path} is not an ONNX model: it has no nodes. Name an .onnx file.")
    _refuse_huge_tensors(path, model)
    try:
        move_large_weights(model, weights, path.absolute().parent)
        _load_others(model, path.absolute().parent)
    except (OSError, ValueError, onnx.checker.ValidationError) as problem:  # ValueError: the file is too short
        raise ExportError(
            f"{path} keeps its weights in a file beside it, which cannot be read ({problem}). Copy that file, whole "
            "and with its name, into the same folder; it may be neither a link nor lie elsewhere."
        ) from problem
    return model


def _refuse_huge_tensors(path: Path, model: onnx.ModelProto) -> None:
    """Weights may take more than 2 GB together; none may alone, for no library reads it from a graph."""
    for tensor in model.graph.initializer:
        known = tensor.data_type not in (TensorProto.UNDEFINED, TensorProto.STRING)
        size = prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize if known else 0
        if size >= MOST_OF_A_TENSOR:
            raise ExportError(
                f"{path} has the weight '{tensor.name}' of {size / 1e9:.1f} GB, and a tensor of an ONNX graph can take "
                "up to 2 GB. Export the network with that layer in parts."
            )


def _load_others(model: onnx.ModelProto, folder: Path) -> None:
    """What is beside the graph and is no initialiser: constants of nodes and of their branches."""
    moved = list(model.graph.initializer)
    del model.graph.initializer[:]
    onnx.load_external_data_for_model(model, str(folder))
    model.graph.initializer.extend(moved)


def _check_format(path: Path, start: bytes) -> None:
    for offset, magic, what in OTHER_FORMATS:
        if start[offset : offset + len(magic)] == magic:
            raise ExportError(f"{path} is not an ONNX model but {what}.")
