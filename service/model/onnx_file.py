"""Which files an ONNX graph reads its weights from, found without running or loading it.

ONNX Runtime opens whatever file a tensor's `external_data` names. So that no weight is used that was not hashed, this
module walks the file's protobuf messages and lists those names. It knows only the few fields that can lead to a tensor
(https://github.com/onnx/onnx/blob/main/onnx/onnx.proto3) and passes over all others.
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_DEPTH = 100
# Message → its fields that hold other messages, by number.
FIELDS: dict[str, dict[int, str]] = {
    "Model": {7: "Graph", 20: "Training", 25: "Function"},
    "Training": {1: "Graph", 2: "Graph"},
    "Function": {7: "Node"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "ExternalData"},
}
KEY, VALUE = 1, 2  # fields of ExternalData
LOCATION = b"location"


class NotOnnxError(ValueError):
    """The bytes are not a protobuf message."""


def external_files(content: bytes) -> set[str]:
    """The names of the files from which the graph in an .onnx file reads tensors."""
    return set(_locations(memoryview(content), "Model", 0))


def _locations(message: memoryview, kind: str, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise NotOnnxError(f"its graphs are nested more than {MAX_DEPTH} deep")
    below = FIELDS[kind]
    for number, value in _fields(message):
        inner = below.get(number)
        if inner is None or not isinstance(value, memoryview):
            continue
        if inner == "ExternalData":
            entry = {number: bytes(text) for number, text in _fields(value) if isinstance(text, memoryview)}
            if entry.get(KEY) == LOCATION:
                yield entry.get(VALUE, b"").decode("utf-8", "replace")
        else:
            yield from _locations(value, inner, depth + 1)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == BYTES:
            length, at = _varint(message, at)
        elif wire in (FIXED64, FIXED32):
            length = 8 if wire == FIXED64 else 4
        else:
            raise NotOnnxError("it holds a field of an unknown kind")
        if at + length > end:
            raise NotOnnxError("it is cut off")
        yield number, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise NotOnnxError("it is cut off")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
