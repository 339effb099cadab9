"""Requests that are wrong, large or lying: each gets its own clear 4xx, and the service goes on."""

import base64
import io
import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from benchmarks.soak.hostile import png_claiming, webp_claiming
from tests.conftest import RED, Service, make_bundle, solid

PNG = {"Content-Type": "image/png"}


@pytest.fixture(autouse=True)
def _goes_on(client: httpx.Client) -> Iterator[None]:
    """After each of these requests the service still answers a good one."""
    yield
    response = client.post("/v1/predict", content=RED, headers=PNG)
    assert response.json()["predictions"][0]["label"] == "red"


def refused(response: httpx.Response, status: int, kind: str) -> str:
    """Checks that a problem says what it must, and returns its sentence."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["type"] == f"urn:confgate:problem:{kind}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["request_id"] == response.headers["x-request-id"]
    return str(problem["detail"])


def noise(kind: str) -> bytes:
    """An encoded image of some 20,000 bytes."""
    file = io.BytesIO()
    Image.effect_noise((200, 200), 80).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (noise("PNG")[:3000], "truncated"),
        (RED[:40] + b"\xff" * 20 + RED[60:], "damaged"),
        (b"Dear service, what is this?", "not a PNG"),
        (b"%PDF-1.7 " + RED, "not a PNG"),
        (noise("JPEG")[:3000], "truncated"),
        (b"GIF89a" + b"\xff" * 40, "damaged"),
        (b"II*\0\x08\0\0\0\xff\xff" + b"\xff" * 50, "not a PNG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a PNG"),
    ],
    ids=["truncated PNG", "bytes flipped", "text", "PDF", "truncated JPEG", "broken GIF", "broken TIFF", "SVG"],
)
def test_what_is_no_image_is_422(client: httpx.Client, body: bytes, says: str) -> None:
    """A corrupt image or something else under an image's Content-Type is an invalid image."""
    detail = refused(client.post("/v1/predict", content=body, headers=PNG), 422, "invalid-image")
    assert says in detail


@pytest.mark.parametrize("body", [png_claiming(20_000, 20_000), webp_claiming(16_000, 16_000)], ids=["PNG", "WebP"])
def test_a_decompression_bomb_is_413(client: httpx.Client, body: bytes) -> None:
    """An image of hundreds of megapixels is refused by its header, before it is decoded."""
    refused(client.post("/v1/predict", content=body, headers=PNG), 413, "too-large")


def test_a_real_20000_by_20000_png_is_413(client: httpx.Client) -> None:
    """Also a valid PNG of 20,000 × 20,000 pixels, which is a small file, is too large."""
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")
    detail = refused(client.post("/v1/predict", content=file.getvalue(), headers=PNG), 413, "too-large")
    assert "40000000 pixels" in detail


def test_an_empty_body_is_400(client: httpx.Client) -> None:
    """An empty body is malformed, and the answer says how to send a file."""
    assert "curl" in refused(client.post("/v1/predict", headers=PNG), 400, "malformed-request")


def test_an_unknown_model_is_404(client: httpx.Client) -> None:
    """A model that is not loaded is not found, and the answer names those that are."""
    for path in ("/v1/predict?model=nope", "/v1/predict?version=9"):
        assert "served are" in refused(client.post(path, content=RED, headers=PNG), 404, "unknown-model")
    refused(client.get("/v1/models/nope"), 404, "unknown-model")


@pytest.mark.parametrize(
    "query",
    [
        "policy=nope",
        "score=nope",
        "polcy=tpr95",
        "top_k=0",
        "top_k=many",
        "top_k=" + "9" * 5000,
        "version=-1",
        "version=%D9%A1",
        "preprocess=perhaps",
        "policy=tpr95&policy=tpr95",
        "model=",
        "&".join(f"a{i}=1" for i in range(500)),
    ],
)
def test_a_wrong_query_is_400(client: httpx.Client, query: str) -> None:
    """A query that asks for what does not exist is malformed."""
    refused(client.post(f"/v1/predict?{query}", content=RED, headers=PNG), 400, "malformed-request")


@pytest.mark.parametrize("kind", ["text/plain", "image/svg+xml", "application/x-www-form", "é".encode()])
def test_a_foreign_content_type_is_415(client: httpx.Client, kind: str | bytes) -> None:
    """A Content-Type that is not served is refused with those that are."""
    response = client.post("/v1/predict", content=RED, headers={"Content-Type": kind})
    assert "image/png" in refused(response, 415, "unsupported-type")


def test_the_bytes_decide_and_not_the_content_type(client: httpx.Client) -> None:
    """A JPEG sent as image/png, or as nothing, is decoded for what it is."""
    for headers in (PNG, {}, {"Content-Type": "application/octet-stream"}):
        response = client.post("/v1/predict", content=solid((0, 0, 255), kind="JPEG"), headers=headers)
        assert response.json()["predictions"][0]["label"] == "blue"


# Past four times the limit an unannounced body is cut off, which a client that still writes may see first.
@pytest.mark.parametrize(
    ("size", "chunked"), [(300_001, False), (900_000, False), (5_000_000, False), (300_001, True), (900_000, True)]
)
def test_too_many_bytes_are_413(client: httpx.Client, size: int, chunked: bool) -> None:
    """A body over the limit is refused, whether its length was announced or not, and the client sees why."""
    content = iter([bytes(size // 10 + 1)] * 10) if chunked else bytes(size)
    detail = refused(client.post("/v1/predict", content=content, headers=PNG), 413, "too-large")
    assert "300000 bytes" in detail


def test_an_endless_body_is_cut_off(service: Service) -> None:
    """A chunked body without end is answered with 413 and a closed connection, not read for ever."""
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        with pytest.raises(OSError, match=r"reset|Broken"):  # noqa: PT012 - one of many sends will fail
            for _ in range(10_000):
                connection.sendall(chunk)


def test_one_bad_image_fails_the_request_and_is_named(client: httpx.Client) -> None:
    """Without partial one bad image among many fails the request, and the answer says which."""
    files = [("f", ("a", RED)), ("f", ("b", b"")), ("f", ("c", b"text"))]
    response = client.post("/v1/predict", files=files)
    assert "empty" in refused(response, 422, "invalid-image")
    assert response.json()["index"] == 1


def test_too_many_files_are_413(client: httpx.Client) -> None:
    """Twenty thousand empty parts are refused at the ninth, where eight are allowed."""
    part = b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    body = part * 20_000 + b"--x--\r\n"
    refused(client.post("/v1/predict", content=body[:290_000], headers=headers), 413, "too-large")
    refused(client.post("/v1/predict", content=part * 9 + b"--x--\r\n", headers=headers), 413, "too-large")


@pytest.mark.parametrize(
    ("boundary", "body"),
    [
        ("", b"--x--\r\n"),
        ("; boundary=x", b""),
        ("; boundary=x", b"--x--\r\n"),
        ("; boundary=x", b"no boundary at all"),
        ("; boundary=x", b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n' + RED),
        ("; boundary=x", b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ncolours\r\n--x--\r\n'),
        ("; boundary=x", b"--x\r\nbad header\r\n\r\n\r\n--x--\r\n"),
        ("; boundary=x", b"--x\r\n\r\nno headers\r\n--x--\r\n"),
        ("; boundary=x", b"--x\r\nA: " + b"a" * 100_000 + b"\r\n\r\n\r\n--x--\r\n"),
        ("; boundary=" + "x" * 5000, b"--x--\r\n"),
    ],
    ids=[
        *("no boundary", "empty", "no part", "text", "not closed", "a field", "bad header", "no header"),
        *("long header", "long boundary"),
    ],
)
def test_a_malformed_form_is_400(client: httpx.Client, boundary: str, body: bytes) -> None:
    """A multipart body that breaks its own rules is malformed."""
    headers = {"Content-Type": "multipart/form-data" + boundary}
    refused(client.post("/v1/predict", content=body, headers=headers), 400, "malformed-request")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"images": []}',
        b'{"images": "x"}',
        b'{"images": ["eA=="], "x": 1}',
        b"[" * 1_000,
        b"\xff",
    ],
)
def test_malformed_json_is_400(client: httpx.Client, body: bytes) -> None:
    """A JSON body that is not {"images": [...]} is malformed."""
    response = client.post("/v1/predict", content=body, headers={"Content-Type": "application/json"})
    refused(response, 400, "malformed-request")


def test_json_with_a_bad_image_names_it(client: httpx.Client) -> None:
    """An item that is not base64 fails the request with its index."""
    good = base64.b64encode(RED).decode()
    for bad in ("not base64!", "é", 7, None):
        body = json.dumps({"images": [good, bad]})
        response = client.post("/v1/predict", content=body, headers={"Content-Type": "application/json"})
        assert "base64" in refused(response, 422, "invalid-image")
        assert response.json()["index"] == 1


def test_json_with_too_many_images_is_413(client: httpx.Client) -> None:
    """Nine images are too many where eight are allowed."""
    refused(client.post("/v1/predict", json={"images": ["eA=="] * 9}), 413, "too-large")
    # Read whole, these would take many times the memory of the body.
    for body in (
        b'{"images": [' + b"[]," * 90_000 + b"[]]}",
        b"[" * 200_000,
        b'{"images": [' + b"{}," * 50_000 + b"0]}",
    ):
        refused(
            client.post("/v1/predict", content=body, headers={"Content-Type": "application/json"}), 413, "too-large"
        )


@pytest.mark.parametrize("timeout", ["0", "-5", "soon", "1.5", "9999999999"])
def test_a_wrong_timeout_header_is_400(client: httpx.Client, timeout: str) -> None:
    """X-Request-Timeout-Ms must be a whole number of milliseconds."""
    headers = {**PNG, "X-Request-Timeout-Ms": timeout}
    refused(client.post("/v1/predict", content=RED, headers=headers), 400, "malformed-request")


def exchange(service: Service, data: bytes) -> bytes:
    """Sends raw bytes and reads until the service closes the connection."""
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(data)
        answer = b""
        while received := connection.recv(65536):
            answer += received
    return answer


def test_a_body_that_never_comes_whole_is_408(models) -> None:
    """A client that announces more than it sends is told so after the body's time is up."""
    make_bundle(models)
    running = Service(models, "--body-timeout-ms", "50").wait_until_serving()
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 500\r\n\r\n"
    answer = exchange(running, head + RED)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"urn:confgate:problem:body-timeout" in answer
    assert running.stop() == 0


def test_a_body_longer_than_announced_is_no_second_request(service: Service) -> None:
    """Bytes after the announced length are not taken for an image; the connection ends with a 400."""
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 10\r\n\r\n"
    answer = exchange(service, head + RED)
    assert b"HTTP/1.1 400 " in answer


@pytest.mark.parametrize("length", [b"-1", b"abc", b"99999999999999999999999999", b"10\r\nContent-Length: 20"])
def test_a_nonsense_content_length_is_4xx(service: Service, length: bytes) -> None:
    """A Content-Length that is no length is refused by the HTTP parser."""
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: "
    assert exchange(service, head + length + b"\r\n\r\n").startswith(b"HTTP/1.1 4")


def test_an_unknown_path_is_a_problem_too(client: httpx.Client) -> None:
    """No such path and no such method are problems on /v1, and {"error"} on /v2."""
    refused(client.get("/v1/nope"), 404, "not-found")
    refused(client.get("/v1/predict"), 405, "method-not-allowed")
    response = client.get("/v2/nope")
    assert response.status_code == 404
    assert response.json().keys() == {"error"}
