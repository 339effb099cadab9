"""The body of a /v2 infer request → images and choices. Nothing in it is trusted before it is checked.

A body is a JSON object, or with the header Inference-Header-Content-Length a JSON object of that many bytes and behind
it the input's data as it is ("binary tensor data"). Whatever a shape or a size claims, the largest thing made from a
body is the body itself: claims are compared with the bytes that came before anything is made of either.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np

from service.errors import MalformedRequest, RequestError, TooLarge, WrongShape
from service.model.images import Pixels
from service.model.manifest import Input
from service.web.bodies import BodyLimits, unpack

INPUT = "image"
# A parsed JSON number takes many times its own bytes; larger tensors are sent as binary data.
MAX_JSON_VALUES = 1_000_000
MAX_ID = 256
LENGTH_BYTES = 4
SHOWN = 60

Value = TypeVar("Value")
Images = list[bytes | Pixels | RequestError]


@dataclass(frozen=True, slots=True)
class Output:
    """An output that was asked for; `classes` asks for the k largest, each as "value:index:label"."""

    name: str
    binary: bool
    classes: int | None = None


@dataclass(frozen=True, slots=True)
class InferRequest:
    id: str | None
    model: str | None
    version: str | None
    policy: str | None
    score: str | None
    preprocess: bool
    # None: all there are.
    outputs: tuple[Output, ...] | None
    binary_output: bool
    images: Images


def read_infer(
    body: bytes, header_length: int | None, target: Input, outputs: Collection[str], limits: BodyLimits
) -> InferRequest:
    """Reads a whole body for a model that takes `target` and has `outputs`."""
    if header_length is not None and not 0 < header_length <= len(body):
        raise MalformedRequest(
            f"Inference-Header-Content-Length is {header_length}, but the body has {len(body)} bytes: "
            "it must say how many of them are JSON"
        )
    document = _parse(body if header_length is None else body[:header_length], target, limits.max_images)
    binary = memoryview(body)[header_length:] if header_length is not None else None
    known = ("id", "model_name", "model_version", "parameters", "inputs", "outputs")
    _refuse_unknown("the request", document, known)
    parameters = _parameters("parameters", document)
    _refuse_unknown("parameters", parameters, ("policy", "score", "preprocess", "binary_data_output"))
    binary_output = _of(bool, "parameters.binary_data_output", parameters.get("binary_data_output", False))
    return InferRequest(
        id=_id(document.get("id")),
        model=_optional(str, "model_name", document.get("model_name")),
        version=_optional(str, "model_version", document.get("model_version")),
        policy=_optional(str, "parameters.policy", parameters.get("policy")),
        score=_optional(str, "parameters.score", parameters.get("score")),
        preprocess=_of(bool, "parameters.preprocess", parameters.get("preprocess", False)),
        outputs=_outputs(document.get("outputs"), outputs, binary_output),
        binary_output=binary_output,
        images=_images(_only_input(document.get("inputs")), binary, target, limits.max_images),
    )


def _parse(text: bytes, target: Input, max_images: int) -> dict[str, Any]:
    """The JSON, if it does not hold more values than a request can need."""
    pixels = max_images * target.width * target.height
    most = min(MAX_JSON_VALUES, 5 * pixels + 1000)
    # Each value but the first in its list follows one of these; counting them is far cheaper than reading.
    if text.count(b",") + text.count(b"[") + text.count(b"{") > most:
        raise TooLarge(
            f"the JSON holds more than {most} values: send the image as binary data "
            "(parameters.binary_data_size), or encoded, as datatype BYTES"
        )
    try:
        decoded = text.decode("utf-8")
        if decoded.startswith("\ufeff"):
            raise json.JSONDecodeError(
                "Unexpected UTF-8 BOM (decode using utf-8-sig)", decoded, 0
            )  # as json.loads says
        document = _DECODER.decode(decoded)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"the body is not JSON: {str(error)[:SHOWN]}") from error
    return _object("the request", document)


def _only_input(inputs: object) -> dict[str, Any]:
    if not isinstance(inputs, list) or not inputs:
        raise MalformedRequest(f'inputs must be a list with the input "{INPUT}"')
    names = []
    for item in inputs:
        names.append(name := _of(str, "inputs[].name", _object("an input", item).get("name")))
        if name != INPUT:
            raise MalformedRequest(f'there is no input {name[:SHOWN]!r}: the model has one, "{INPUT}"')
    if len(names) > 1:
        raise MalformedRequest(f'the input "{INPUT}" is given {len(names)} times')
    _refuse_unknown(f"the input {INPUT}", inputs[0], ("name", "shape", "datatype", "parameters", "data"))
    return dict(inputs[0])


def _images(tensor: Mapping[str, Any], binary: memoryview | None, target: Input, max_images: int) -> Images:
    datatype, shape = tensor.get("datatype"), _shape(tensor.get("shape"))
    if datatype == "UINT8":
        wanted, size = (target.height, target.width, 3), target.height * target.width * 3
        if len(shape) != 4 or tuple(shape[1:]) != wanted:
            raise WrongShape(
                f"the input {INPUT} has the shape {_shown(shape)}; as UINT8 it must be "
                f"[N, {target.height}, {target.width}, 3] (encoded images of any size are sent as BYTES [N])"
            )
    elif datatype == "BYTES":
        size = 0
        if len(shape) != 1:
            raise WrongShape(f"the input {INPUT} has the shape {_shown(shape)}; as BYTES it must be [N]")
    else:
        raise MalformedRequest(
            f"the input {INPUT} has the datatype {_shown(datatype)}; it must be UINT8 (pixels) or BYTES (image files)"
        )
    count = shape[0]
    if count == 0:
        raise WrongShape(f"the input {INPUT} has the shape {_shown(shape)}: it holds no image")
    if count > max_images:
        raise TooLarge(f"the request has {count} images; at most {max_images} are allowed")
    content = _binary(tensor, binary)
    if datatype == "BYTES":
        return _unpack_files(content, count) if content is not None else _files_of_json(tensor["data"], count)
    if content is None:
        content = memoryview(_bytes_of_json(tensor["data"], shape, count * size))
    if len(content) != count * size:
        raise WrongShape(f"the shape {_shown(shape)} is {count * size} bytes, but there are {len(content)}")
    return list(np.frombuffer(content, np.uint8).reshape(shape))


def _binary(tensor: Mapping[str, Any], binary: memoryview | None) -> memoryview | None:
    """The bytes behind the JSON if the input says that its data is there; None if it has its data in the JSON."""
    parameters = _parameters(f"the parameters of {INPUT}", tensor)
    _refuse_unknown(f"the parameters of {INPUT}", parameters, ("binary_data_size",))
    data, size = tensor.get("data"), parameters.get("binary_data_size")
    if (data is None) == (size is None):
        raise MalformedRequest(f"the input {INPUT} must have either data, or parameters.binary_data_size")
    if data is not None:
        if binary:
            raise MalformedRequest(f"{len(binary)} bytes follow the JSON, and no input has a binary_data_size")
        return None
    size = _of(int, "binary_data_size", size)
    if binary is None:
        raise MalformedRequest("binary_data_size needs the header Inference-Header-Content-Length")
    if size != len(binary):
        raise MalformedRequest(f"binary_data_size is {_shown(size)}, but {len(binary)} bytes follow the JSON")
    return binary


def _unpack_files(content: memoryview, count: int) -> Images:
    """Elements of BYTES: each its length in 4 bytes, little-endian, and then itself."""
    files: Images = []
    at = 0
    for place in range(count):
        begin = at + LENGTH_BYTES
        at = begin + int.from_bytes(content[at:begin], "little")
        if begin > len(content) or at > len(content):
            raise MalformedRequest(f"the binary data of {INPUT} ends within element {place} of {count}")
        files.append(bytes(content[begin:at]))
    if at != len(content):
        raise MalformedRequest(f"the binary data of {INPUT} has {len(content) - at} bytes after its {count} elements")
    return files


def _files_of_json(data: object, count: int) -> Images:
    if not isinstance(data, list) or len(data) != count:
        raise WrongShape(f"the data of {INPUT} must be a list of {count} strings, as its shape says")
    return [unpack(item) for item in data]


def _bytes_of_json(data: object, shape: list[int], size: int) -> bytes:
    """Numbers, flat or nested as the shape says."""
    values = data if isinstance(data, list) else []
    if values and isinstance(values[0], list):
        for length in shape[1:]:
            if not all(isinstance(row, list) and len(row) == length for row in values):
                raise WrongShape(f"the data of {INPUT} is not nested as its shape {_shown(shape)} says")
            values = [value for row in values for value in row]
    if len(values) != size:
        raise WrongShape(f"the shape {_shown(shape)} is {size} numbers, but the data has {len(values)}")
    if not all(type(value) is int and 0 <= value <= 255 for value in values):
        raise MalformedRequest(f"the data of {INPUT} must be whole numbers from 0 to 255")
    return bytes(values)


def _outputs(items: object, known: Collection[str], binary_default: bool) -> tuple[Output, ...] | None:
    if items is None or items == []:
        return None
    if not isinstance(items, list):
        raise MalformedRequest("outputs must be a list of objects with a name")
    chosen: dict[str, Output] = {}
    for item in items:
        output = _object("an output", item)
        _refuse_unknown("an output", output, ("name", "parameters"))
        name = _of(str, "outputs[].name", output.get("name"))
        if name not in known:
            raise MalformedRequest(f"there is no output {name[:SHOWN]!r}; there are {', '.join(known)}")
        if name in chosen:
            raise MalformedRequest(f"the output {name!r} is asked for twice")
        chosen[name] = _output(name, _parameters(f"the parameters of {name}", output), binary_default)
    return tuple(chosen.values())


def _output(name: str, parameters: Mapping[str, Any], binary_default: bool) -> Output:
    allowed = ("binary_data", "classification") if name == "probabilities" else ("binary_data",)
    _refuse_unknown(f"the parameters of {name}", parameters, allowed)
    classes = _optional(int, "classification", parameters.get("classification"))
    if classes is not None and classes < 1:
        raise MalformedRequest(f"classification must be at least 1, not {_shown(classes)}")
    return Output(name, _of(bool, "binary_data", parameters.get("binary_data", binary_default)), classes)


def _shape(value: object) -> list[int]:
    if not isinstance(value, list) or not all(type(size) is int for size in value):
        raise MalformedRequest(f"the shape of {INPUT} must be a list of whole numbers")
    if any(size < 0 for size in value):
        raise WrongShape(f"the shape {_shown(value)} of {INPUT} has a negative size")
    return value


def _id(value: object) -> str | None:
    given = _optional(str, "id", value)
    if given is not None and not (len(given) <= MAX_ID and given.isprintable()):
        raise MalformedRequest(f"id must be at most {MAX_ID} printable characters")
    return given or None


def _object(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedRequest(f"{name} must be a JSON object, not {_kind(value)}")
    return value


def _parameters(name: str, of: Mapping[str, Any]) -> dict[str, Any]:
    given = of.get("parameters")
    return {} if given is None else _object(name, given)


def _of(kind: type[Value], name: str, value: object) -> Value:
    """A value of exactly that type: true is no number."""
    if type(value) is not kind:
        raise MalformedRequest(f"{name} must be {_KINDS[kind]}, not {_kind(value)}")
    return value


def _optional(kind: type[Value], name: str, value: object) -> Value | None:
    return None if value is None else _of(kind, name, value)


_KINDS: dict[object, str] = {bool: "true or false", int: "a whole number", str: "a string"}


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a JSON {type(value).__name__}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _refuse_unknown(where: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise MalformedRequest(f"{where}: {unknown[:SHOWN]!r} is unknown; known are {', '.join(known)}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


# Made once: json.loads would make one for each request.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
