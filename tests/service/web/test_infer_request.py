"""Infer requests that are wrong, large or lying: each gets a clear 4xx, and the service goes on."""

from collections.abc import Iterator

import httpx
import pytest

from tests.service.web.infer_bodies import ONE, REFUSED, request, tensor


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
