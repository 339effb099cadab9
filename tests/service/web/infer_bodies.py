"""Infer requests as bytes: builders of good ones with some fields changed, and a table of wrong ones."""

import json
from typing import Any

from tests.conftest import RED, SIDE

SIZE = SIDE * SIDE * 3
ONE = bytes(SIZE)


def tensor(**fields: Any) -> dict[str, Any]:
    """A good input in binary data, with some fields changed; None takes a field away."""
    whole = {
        "name": "image",
        "shape": [1, SIDE, SIDE, 3],
        "datatype": "UINT8",
        "parameters": {"binary_data_size": SIZE},
        **fields,
    }
    return {name: value for name, value in whole.items() if value is not None}


def as_json(**fields: Any) -> dict[str, Any]:
    """A good input in JSON, with some fields changed."""
    return tensor(**{"parameters": None, "data": [0] * SIZE, **fields})


def files(*contents: bytes, **fields: Any) -> tuple[dict[str, Any], bytes]:
    packed = b"".join(len(content).to_bytes(4, "little") + content for content in contents)
    parameters = {"binary_data_size": len(packed)}
    return tensor(**{"shape": [len(contents)], "datatype": "BYTES", "parameters": parameters, **fields}), packed


def request(*inputs: dict[str, Any], binary: bytes = b"", **fields: Any) -> tuple[bytes, bytes]:
    return json.dumps({"inputs": list(inputs), **fields}).encode(), binary


DEEP = b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}"
NAN = json.dumps({"inputs": [as_json(data=[float("nan")] * SIZE)]}).encode()

# What is sent (JSON, and what follows it), the status, and words of the answer.
REFUSED: dict[str, tuple[tuple[bytes, bytes], int, str]] = {
    "no JSON": ((b"image", b""), 400, "the body is not JSON"),
    "no UTF-8": ((b'{"id": "\xff"}', b""), 400, "the body is not JSON"),
    "byte order mark": ((b"\xef\xbb\xbf{}", b""), 400, "Unexpected UTF-8 BOM"),
    "no object": ((b"[1]", b""), 400, "must be a JSON object, not a JSON list"),
    "deep": ((DEEP, b""), 413, "more than 3560 values"),
    "deep, not long": ((b"[" * 1500 + b"]" * 1500, b""), 400, "the body is not JSON"),
    "NaN": ((NAN, b""), 400, "NaN is no JSON number"),
    "infinity": (request(as_json(data=[1e999] * SIZE)), 400, "Infinity is no JSON number"),
    "too large a float": ((request(as_json())[0].replace(b"[0,", b"[1e999,"), b""), 400, "whole numbers from 0"),
    "a number of 5000 digits": ((request(as_json())[0].replace(b"[0,", b"[" + b"9" * 5000 + b","), b""), 400, "JSON"),
    "no input": (request(), 400, 'a list with the input "image"'),
    "inputs no list": ((b'{"inputs": {}}', b""), 400, 'a list with the input "image"'),
    "an input no object": ((b'{"inputs": [1]}', b""), 400, "an input must be a JSON object"),
    "wrong name": (request(tensor(name="pixels"), binary=ONE), 400, "there is no input 'pixels'"),
    "no name": (request(tensor(name=None), binary=ONE), 400, "name must be a string, not nothing"),
    "twice": (request(tensor(), tensor(), binary=ONE + ONE), 400, "is given 2 times"),
    "unknown field": (request(tensor(colour="RGB"), binary=ONE), 400, "'colour' is unknown; known are name, shape"),
    "unknown top field": (request(tensor(), binary=ONE, output=[]), 400, "'output' is unknown"),
    "unknown parameter": (request(tensor(), binary=ONE, parameters={"top_k": 1}), 400, "'top_k' is unknown"),
    "parameter of wrong type": (request(tensor(), binary=ONE, parameters={"preprocess": 1}), 400, "true or false"),
    "parameters no object": (request(tensor(), binary=ONE, parameters=[]), 400, "must be a JSON object"),
    "another model": (request(tensor(), binary=ONE, model_name="other"), 400, "model_name is 'other', but the path"),
    "another version": (request(tensor(), binary=ONE, model_version="7"), 400, "model_version is '7'"),
    "id no string": (request(tensor(), binary=ONE, id=7), 400, "id must be a string, not a JSON int"),
    "id too long": (request(tensor(), binary=ONE, id="x" * 257), 400, "at most 256 printable"),
    "id a lone surrogate": (request(tensor(), binary=ONE, id="\ud800"), 400, "printable"),
    "no datatype": (request(tensor(datatype=None), binary=ONE), 400, "it must be UINT8"),
    "FP32": (request(tensor(datatype="FP32"), binary=ONE), 400, "has the datatype 'FP32'; it must be UINT8"),
    "no shape": (request(tensor(shape=None), binary=ONE), 400, "must be a list of whole numbers"),
    "shape of strings": (request(tensor(shape=["1", 8, 8, 3]), binary=ONE), 400, "whole numbers"),
    "shape of truth": (request(tensor(shape=[True, 8, 8, 3]), binary=ONE), 400, "whole numbers"),
    "shape of floats": (request(tensor(shape=[1.0, 8, 8, 3]), binary=ONE), 400, "whole numbers"),
    "empty shape": (request(tensor(shape=[]), binary=ONE), 422, "[N, 8, 8, 3]"),
    "wrong size": (request(tensor(shape=[1, 9, 8, 3]), binary=ONE), 422, "[1, 9, 8, 3]; as UINT8 it must be [N, 8, 8"),
    "channels first": (request(tensor(shape=[1, 3, 8, 8]), binary=ONE), 422, "[N, 8, 8, 3]"),
    "one image alone": (request(tensor(shape=[8, 8, 3]), binary=ONE), 422, "[N, 8, 8, 3]"),
    "negative": (request(tensor(shape=[-1, 8, 8, 3]), binary=ONE), 422, "negative"),
    "two negatives": (request(tensor(shape=[-1, 8, -8, 3]), binary=ONE), 422, "negative"),
    "no image": (request(tensor(shape=[0, 8, 8, 3], parameters={"binary_data_size": 0})), 422, "holds no image"),
    "no file": (request(files(RED, shape=[0])[0], binary=files(RED)[1]), 422, "holds no image"),
    "too many": (request(tensor(shape=[9, 8, 8, 3]), binary=ONE), 413, "at most 8"),
    "giant batch": (request(tensor(shape=[2**40, 8, 8, 3]), binary=ONE), 413, "at most 8"),
    "giant sides": (request(tensor(shape=[1, 2**40, 2**40, 3]), binary=ONE), 422, "[N, 8, 8, 3]"),
    "giant number of files": (request(files(RED, shape=[2**40])[0], binary=files(RED)[1]), 413, "at most 8"),
    "giant shape as text": (request(tensor(shape=[10**300, 8, 8, 3]), binary=ONE), 413, "at most 8"),
    "more shape than bytes": (request(tensor(shape=[2, 8, 8, 3]), binary=ONE), 422, "is 384 bytes, but there are 192"),
    "size too small": (request(tensor(parameters={"binary_data_size": 5}), binary=ONE), 400, "is 5, but 192 bytes"),
    "size too large": (request(tensor(parameters={"binary_data_size": 2**40}), binary=ONE), 400, "but 192 bytes"),
    "size negative": (request(tensor(parameters={"binary_data_size": -1}), binary=ONE), 400, "is -1, but 192 bytes"),
    "size no number": (request(tensor(parameters={"binary_data_size": "192"}), binary=ONE), 400, "a whole number"),
    "size with data": (request(as_json(parameters={"binary_data_size": SIZE}), binary=ONE), 400, "either data, or"),
    "neither": (request(as_json(data=None)), 400, "either data, or"),
    "bytes for nobody": (request(as_json(), binary=b"x"), 400, "1 bytes follow the JSON, and no input"),
    "shared memory": (
        request(tensor(parameters={"shared_memory_region": "a", "binary_data_size": SIZE}), binary=ONE),
        *(400, "'shared_memory_region' is unknown; known are binary_data_size"),
    ),
    "a file longer than the rest": (
        request(files(RED)[0], binary=b"\xff\xff\xff\xff" + files(RED)[1][4:]),
        *(400, "ends within element 0 of 1"),
    ),
    "half a length": (
        request(files(RED, shape=[2], parameters={"binary_data_size": len(RED) + 6})[0], binary=files(RED)[1] + b"ab"),
        *(400, "ends within element 1 of 2"),
    ),
    "more files than the shape": (
        request(files(RED, RED, shape=[1])[0], binary=files(RED, RED)[1]),
        400,
        "after its 1",
    ),
    "files of another shape": (request(files(RED, shape=[1, 1])[0], binary=files(RED)[1]), 422, "must be [N]"),
    "an empty file": (request(files(b"")[0], binary=files(b"")[1]), 422, "image 0: the image is empty"),
    "one bad file of two": (request(files(RED, b"x")[0], binary=files(RED, b"x")[1]), 422, "image 1: the bytes are"),
    "no base64": (request(as_json(shape=[1], datatype="BYTES", data=["*"])), 422, "image 0: the image is not base64"),
    "numbers as files": (request(as_json(shape=[1], datatype="BYTES", data=[1])), 422, "not a string of base64"),
    "fewer files": (request(as_json(shape=[2], datatype="BYTES", data=["aa"])), 422, "a list of 2 strings"),
    "data no list": (request(as_json(data="AAAA")), 422, "but the data has 0"),
    "data too short": (request(as_json(data=[0] * 5)), 422, "is 192 numbers, but the data has 5"),
    "data too long": (request(as_json(data=[0] * 193)), 422, "but the data has 193"),
    "data out of range": (request(as_json(data=[256] * SIZE)), 400, "whole numbers from 0 to 255"),
    "data negative": (request(as_json(data=[-1] * SIZE)), 400, "whole numbers from 0 to 255"),
    "data in floats": (request(as_json(data=[0.5] * SIZE)), 400, "whole numbers from 0 to 255"),
    "data in truths": (request(as_json(data=[True] * SIZE)), 400, "whole numbers from 0 to 255"),
    "data of nothings": (request(as_json(data=[None] * SIZE)), 400, "whole numbers from 0 to 255"),
    "badly nested": (request(as_json(data=[[0] * SIZE])), 422, "not nested as its shape"),
    "half nested": (request(as_json(data=[[[0] * 24] * 8])), 422, "not nested as its shape"),
    "too many values": (request(as_json(data=[0] * 5000)), 413, "send the image as binary data"),
    "outputs no list": (request(tensor(), binary=ONE, outputs="label"), 400, "outputs must be a list"),
    "unknown output": (
        request(tensor(), binary=ONE, outputs=[{"name": "x"}]),
        400,
        "no output 'x'; there are class_id",
    ),
    "output twice": (request(tensor(), binary=ONE, outputs=[{"name": "label"}] * 2), 400, "is asked for twice"),
    "output without name": (request(tensor(), binary=ONE, outputs=[{}]), 400, "name must be a string"),
    "output parameter": (
        request(tensor(), binary=ONE, outputs=[{"name": "label", "parameters": {"classification": 2}}]),
        *(400, "'classification' is unknown; known are binary_data"),
    ),
    "no classes": (
        request(tensor(), binary=ONE, outputs=[{"name": "probabilities", "parameters": {"classification": 0}}]),
        *(400, "at least 1"),
    ),
}
