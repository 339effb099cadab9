"""The parser of infer requests, called directly: it allocates little, copies no pixels, and no bytes break it."""

import json
import tracemalloc
from collections.abc import Callable

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
from tests.properties import examples
from tests.service.web.infer_bodies import ONE, REFUSED, SIZE, files, request, tensor

TARGET = Input(width=SIDE, height=SIDE, resize="stretch", interpolation="bilinear")
LIMITS = BodyLimits(max_bytes=300_000, max_images=8)
OUTPUTS = ("class_id", "label", "probabilities", "confidence", "in_distribution")


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


@settings(max_examples=examples(200), suppress_health_check=list(HealthCheck))
@given(sent=nearly_good(), cut=st.integers(0, 400), lie=st.none() | st.integers(1, 10**6))
def test_nothing_breaks_the_parser(sent: tuple[bytes, bytes], cut: int, lie: int | None) -> None:
    """Requests with anything in any place are read, or refused with a 4xx of few words; never anything else."""
    document, binary = sent
    body = (document + binary)[: len(document) + len(binary) - cut]
    read_or_refused(body, lie or (len(document) if binary else None))


@settings(suppress_health_check=list(HealthCheck))
@given(body=st.binary(max_size=2000), length=st.none() | st.integers(1, 3000))
def test_no_bytes_break_the_parser(body: bytes, length: int | None) -> None:
    """Bytes that were never meant as a request are refused with a 4xx."""
    assert read_or_refused(body, length) is None


@settings(max_examples=examples(50))
@given(contents=st.lists(st.binary(max_size=60), min_size=1, max_size=8))
def test_files_come_out_as_they_went_in(contents: list[bytes]) -> None:
    """BYTES elements of any content and length are the same after packing and unpacking."""
    described, packed = files(*contents)
    document, binary = request(described, binary=packed)
    assert read_infer(document + binary, len(document), TARGET, OUTPUTS, LIMITS).images == contents
