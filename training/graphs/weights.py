"""Weights in a file beside their graphs, each distinct tensor once.

The forward and the perturbed graph of a bundle hold the same weights; sharing halves the bundle. While a graph is
rewritten and calibrated its large weights lie in a temporary folder: every copy of the graph, and every session, would
hold them once more. Such a graph says itself where they are.
"""

import hashlib
from pathlib import Path

import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

WEIGHTS = "weights.bin"
SMALLEST = 1024  # bytes; smaller tensors stay in the graph, where constant folding can see them
LARGE = 2**20  # bytes; while a graph is rewritten, smaller ones stay in it: the gradient rules read constants
ALIGNMENT = 64
FOLDER = "confgate_weights_folder"  # metadata of a graph whose large weights lie in this folder
# A model in memory has no folder of its own. ONNX Runtime knows this setting since 1.21.
EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"


def share_weights(graphs: list[onnx.ModelProto], path: Path) -> bool:
    """Moves the initialisers of all graphs into the file, in place; False, and no file, if all are small."""
    offsets: dict[bytes, int] = {}
    with path.open("wb") as file:
        for graph in graphs:
            folder = weights_folder(graph)
            for tensor in graph.graph.initializer:
                data = _content(tensor, folder)
                if len(data) < SMALLEST:
                    continue
                key = hashlib.sha256(data).digest()
                if key not in offsets:
                    file.write(bytes(-file.tell() % ALIGNMENT))
                    offsets[key] = file.tell()
                    file.write(data)
                _make_external(tensor, path.name, offsets[key], len(data))
            _lies_in(graph, None)
    if not offsets:
        path.unlink()
    return bool(offsets)


def move_large_weights(model: onnx.ModelProto, folder: Path, beside: Path | None = None) -> None:
    """Moves large weights into a file in the folder, in place. Those of a file from elsewhere may lie in `beside`."""
    path = folder / WEIGHTS
    with path.open("wb") as file:
        for tensor in model.graph.initializer:
            if uses_external_data(tensor) and beside is not None:
                load_external_data_for_tensor(tensor, str(beside))
            if tensor.data_type == TensorProto.STRING or tensor.ByteSize() < LARGE:
                continue
            data = _content(tensor, None)
            file.write(bytes(-file.tell() % ALIGNMENT))
            _make_external(tensor, WEIGHTS, file.tell(), len(data))
            file.write(data)
    _lies_in(model, folder if path.stat().st_size else None)


def load_without_large_weights(path: Path) -> onnx.ModelProto:
    """A graph of a bundle; its large weights stay in the file beside it."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        length = next((int(entry.value) for entry in tensor.external_data if entry.key == "length"), 0)
        if uses_external_data(tensor) and length < LARGE:
            load_external_data_for_tensor(tensor, str(path.parent))
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
    _lies_in(model, path.parent)
    return model


def weights_folder(model: onnx.ModelProto) -> Path | None:
    """Where the large weights of a graph in memory lie; None if they are in it."""
    return next((Path(entry.value) for entry in model.metadata_props if entry.key == FOLDER), None)


def same_weights_as(model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """Says of a graph that is made of another's nodes where its large weights lie."""
    _lies_in(model, weights_folder(other))


def find_weights(options: onnxruntime.SessionOptions, folder: Path | None) -> None:
    """Tells ONNX Runtime the folder of the weights of a graph in memory."""
    if folder is not None:
        options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(folder.absolute()))


def structure_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy for what looks at the nodes alone: weights that lie in a file are inputs of it."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    inside = [tensor for tensor in shown.graph.initializer if not uses_external_data(tensor)]
    outside = [_as_input(tensor) for tensor in shown.graph.initializer if uses_external_data(tensor)]
    del shown.graph.initializer[:]
    shown.graph.initializer.extend(inside)
    shown.graph.input.extend(outside)
    return shown


def _content(tensor: TensorProto, folder: Path | None) -> bytes:
    if folder is not None and uses_external_data(tensor):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        with (folder / entries["location"]).open("rb") as file:
            file.seek(int(entries["offset"]))
            return bytes(file.read(int(entries["length"])))
    return bytes(tensor.raw_data if tensor.HasField("raw_data") else numpy_helper.to_array(tensor).tobytes())


def _as_input(tensor: TensorProto) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)


def _lies_in(model: onnx.ModelProto, folder: Path | None) -> None:
    others = [entry for entry in model.metadata_props if entry.key != FOLDER]
    del model.metadata_props[:]
    model.metadata_props.extend(others)
    if folder is not None:
        model.metadata_props.add(key=FOLDER, value=str(folder.absolute()))


def _make_external(tensor: TensorProto, file_name: str, offset: int, length: int) -> None:
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", file_name), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
