"""Infer requests that are wrong, large or lying: each gets a clear 4xx, and nothing large is made of any claim."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.errors import RequestError
from service.model.manifest import Input
from service.web.bodies import BodyLimits
from service.web.problems import problem_of
from service.web.v2.request import InferRequest, read_infer
from tests.conftest import RED, SIDE

TARGET = Input(width=SIDE, height=SIDE, resize="stretch", interpolation="bilinear")
LIMITS = BodyLimits(max_bytes=300_000, max_images=8)
OUTPUTS = ("class_id", "label", "probabilities", "confidence", "in_distribution")
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


@pytest.fixture(autouse=True)
def _goes_on(client: httpx.Client) -> Iterator[None]:
    """After each of these requests the service still answers a good one."""
    yield
    assert send(client, *request(tensor(), binary=ONE)).status_code == 200


def send(client: httpx.Client, document: bytes, binary: bytes, **headers: str) -> httpx.Response:
    if binary:
        headers = {"Inference-Header-Content-Length": str(len(document)), **headers}
    return client.post("/v2/models/colours/infer", content=document + binary, headers=headers)


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_request_is_told_what_is_wrong(client: httpx.Client, case: str) -> None:
    """Each wrong request gets its status and a sentence that says what was wrong, in `error` and nothing else."""
    sent, status, words = REFUSED[case]
    response = send(client, *sent)
    assert (response.status_code, words in response.json()["error"]) == (status, True), response.text
    assert response.json().keys() == {"error"}
    assert len(response.json()["error"]) < 400


@pytest.mark.parametrize("length", ["0", "-1", "x", "1e3", "99999", str(2**40), "9" * 30, "", "10"])
def test_a_lying_header_length_is_400(client: httpx.Client, length: str) -> None:
    """An Inference-Header-Content-Length that is no number, or not the JSON's, is refused."""
    document, binary = request(tensor(), binary=ONE)
    response = send(client, document, binary, **{"Inference-Header-Content-Length": length})
    assert response.status_code == 400, response.text
    assert response.json()["error"]


def test_binary_data_without_the_header_is_400(client: httpx.Client) -> None:
    """Without Inference-Header-Content-Length everything is JSON, and a binary_data_size has nothing to count."""
    document, binary = request(tensor(), binary=ONE)
    response = client.post("/v2/models/colours/infer", content=document + binary)
    assert response.status_code == 400
    response = client.post("/v2/models/colours/infer", content=document)
    assert "needs the header Inference-Header-Content-Length" in response.json()["error"]


def test_a_body_over_the_limit_is_413(client: httpx.Client) -> None:
    """More bytes than are allowed are refused with {"error"}, whatever they would have been."""
    response = client.post("/v2/models/colours/infer", content=b"x" * 300_001)
    assert response.status_code == 413
    assert "300000 bytes" in response.json()["error"]


def read(document: bytes, binary: bytes) -> InferRequest | RequestError:
    return read_body(document + binary, len(document) if binary else None)


def read_body(body: bytes, length: int | None) -> InferRequest | RequestError:
    try:
        return read_infer(body, length, TARGET, OUTPUTS, LIMITS)
    except RequestError as error:
        return error


def read_or_refused(body: bytes, length: int | None) -> InferRequest | None:
    """Holds that a body is either read into images the model can take, or refused in a few words."""
    asked = read_body(body, length)
    if isinstance(asked, RequestError):
        assert 400 <= problem_of(asked).status < 500
        assert len(asked.detail.encode()) < 800
        return None
    assert 1 <= len(asked.images) <= LIMITS.max_images
    assert all(image.shape == (SIDE, SIDE, 3) for image in asked.images if isinstance(image, np.ndarray))
    return asked


def peak_of(work: Callable[[], object]) -> int:
    """Bytes that Python and numpy held at most while it ran."""
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_request_allocates_little(case: str) -> None:
    """No claim in a request makes the parser allocate more than a few times the request itself."""
    sent, _, _ = REFUSED[case]
    read(*sent)
    assert peak_of(lambda: read(*sent)) < 300_000


@pytest.mark.parametrize("item", [b"[],", b"{},", b"0.5,", b'"",', b"[[[[]]]],"])
def test_json_made_to_grow_is_refused_before_it_is_read(item: bytes) -> None:
    """Text that would take twenty times its size as objects is refused by counting, at the cost of the text."""
    document = b'{"inputs":[' + item * (290_000 // len(item)) + b"0]}"
    assert isinstance(read(document, b""), RequestError)
    assert peak_of(lambda: read(document, b"")) < 20_000


def test_the_images_of_binary_data_are_not_copied() -> None:
    """Pixels that came as binary data are read where they lie."""
    document, binary = request(
        tensor(shape=[8, SIDE, SIDE, 3], parameters={"binary_data_size": 8 * SIZE}), binary=ONE * 8
    )
    body = document + binary
    asked = read_infer(body, len(document), TARGET, OUTPUTS, LIMITS)
    shown = np.frombuffer(body, np.uint8)
    assert len(asked.images) == 8
    assert all(isinstance(image, np.ndarray) and np.shares_memory(image, shown) for image in asked.images)


ODD = (None, True, 0, -1, 7, 2**70, 1.5, "", "image", "x" * 500, "\ud800", [], [[]], [0, None], {}, {"a": {"b": [1]}})
ANYTHING = st.sampled_from(ODD)
SIZES = st.integers(-2, 10) | st.sampled_from([SIDE, 3, SIZE, 2**31, 2**40, 2**64])


@st.composite
def nearly_good(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Requests that are right in most places."""
    binary = draw(st.sampled_from([ONE, ONE * 2, b"", files(RED)[1], files(RED, RED)[1]]) | st.binary(max_size=300))
    inputs = {
        "name": draw(st.just("image") | ANYTHING),
        "shape": draw(st.sampled_from([[1, SIDE, SIDE, 3], [2, SIDE, SIDE, 3], [1], [2]]) | st.lists(SIZES) | ANYTHING),
        "datatype": draw(st.sampled_from(["UINT8", "BYTES"]) | ANYTHING),
        "parameters": draw(
            st.just({"binary_data_size": len(binary)}) | st.fixed_dictionaries({"binary_data_size": SIZES})
        ),
    }
    if draw(st.booleans()):
        inputs |= {"data": draw(st.lists(st.integers(-1, 256), max_size=4) | ANYTHING), "parameters": draw(ANYTHING)}
    fields = draw(st.dictionaries(st.sampled_from(["id", "parameters", "outputs", "model_name"]), ANYTHING, max_size=2))
    return json.dumps({"inputs": [inputs], **fields}).encode(), binary


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(sent=nearly_good(), cut=st.integers(0, 400), lie=st.none() | st.integers(1, 10**6))
def test_nothing_breaks_the_parser(sent: tuple[bytes, bytes], cut: int, lie: int | None) -> None:
    """Requests with anything in any place are read, or refused with a 4xx of few words; never anything else."""
    document, binary = sent
    body = (document + binary)[: len(document) + len(binary) - cut]
    read_or_refused(body, lie or (len(document) if binary else None))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=st.binary(max_size=2000), length=st.none() | st.integers(1, 3000))
def test_no_bytes_break_the_parser(body: bytes, length: int | None) -> None:
    """Bytes that were never meant as a request are refused with a 4xx."""
    assert read_or_refused(body, length) is None


@settings(max_examples=50, deadline=None)
@given(contents=st.lists(st.binary(max_size=60), min_size=1, max_size=8))
def test_files_come_out_as_they_went_in(contents: list[bytes]) -> None:
    """BYTES elements of any content and length are the same after packing and unpacking."""
    described, packed = files(*contents)
    document, binary = request(described, binary=packed)
    assert read_infer(document + binary, len(document), TARGET, OUTPUTS, LIMITS).images == contents
