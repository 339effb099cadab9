"""How a body may come: asked for with a 100, without a Content-Type, as data URLs, and as files with names."""

import base64
import json
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from service.web.v1.schemas import PredictResponse, ProblemResponse
from tests.conftest import ADMIN, BLUE, RED, Service
from tests.service.conftest import HeldService

LIMIT = 300_000  # of the shared service
INFER = "/v2/models/colours/infer"


def answers_to(service: Service, method: str, path: str, length: int, content_type: str, body: bytes = b"") -> bytes:
    """Everything a client reads that announces a body, waits for the 100, and sends `body` only then."""
    address = urlsplit(service.url)
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-API-Key: {ADMIN['X-API-Key']}\r\n"
        f"Expect: 100-continue\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536)
        if answer.startswith(b"HTTP/1.1 100 "):
            connection.sendall(body)
        while received := connection.recv(65536):
            answer += received
    return answer


@pytest.mark.parametrize("length", [LIMIT + 1, 10**9])
@pytest.mark.parametrize(
    ("method", "path", "content_type"),
    [
        ("POST", "/v1/predict", "image/png"),
        ("POST", "/v1/predict", "multipart/form-data; boundary=x"),
        ("POST", "/v1/predict", "application/json"),
        ("POST", INFER, "application/json"),
        ("PUT", "/v1/models/colours/versions/1/gate", "application/json"),
        ("POST", "/v2/repository/index", "application/json"),
    ],
)
def test_too_large_a_body_is_not_asked_for(
    service: Service, method: str, path: str, content_type: str, length: int
) -> None:
    """A client that announces too much and waits for the 100 gets 413 and a closed connection in its place."""
    head, _, body = answers_to(service, method, path, length, content_type).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in head.lower()
    problem = json.loads(body)
    assert "bytes that are allowed" in problem.get("error", problem.get("detail"))


def test_a_body_within_the_limit_is_asked_for(service: Service) -> None:
    """A client that announces what is allowed gets the 100, sends its image, and gets its answer."""
    answer = answers_to(service, "POST", "/v1/predict", len(RED), "image/png", RED)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
    assert b'"label":"red"' in answer


CURLS = "application/x-www-form-urlencoded"
IN_JSON = {"images": [base64.b64encode(RED).decode()]}
UNTYPED = [{}, {"Content-Type": "application/octet-stream"}, {"Content-Type": CURLS}]


def labels_of(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [prediction["label"] for prediction in response.json()["predictions"]]


@pytest.mark.parametrize("headers", UNTYPED)
@pytest.mark.parametrize("body", [RED, json.dumps(IN_JSON).encode(), b" \r\n" + json.dumps(IN_JSON, indent=1).encode()])
def test_without_a_type_the_bytes_say_what_they_are(client: httpx.Client, headers: dict[str, str], body: bytes) -> None:
    """An image file or a JSON object needs no Content-Type, and curl's own does no harm."""
    assert labels_of(client.post("/v1/predict", content=body, headers=headers)) == ["red"]


def test_curl_needs_no_header(service: Service, tmp_path: Path) -> None:
    """`curl --data-binary @FILE` is enough."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    (tmp_path / "red.png").write_bytes(RED)
    command = [curl, "--silent", "--noproxy", "*", "--data-binary", "@red.png", f"{service.url}/v1/predict"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=60).stdout
    assert json.loads(printed)["predictions"][0]["label"] == "red"


@pytest.mark.parametrize("body", [b"image=@red.png", b"images=iVBORw0KGgo%3D&model=colours", b"[1, 2]"])
def test_the_fields_of_a_form_are_415(client: httpx.Client, body: bytes) -> None:
    """What curl's own Content-Type really means is not served, and the answer says how to send a file."""
    refused = client.post("/v1/predict", content=body, headers={"Content-Type": CURLS})
    assert refused.status_code == 415
    assert "--data-binary @FILE" in refused.json()["detail"]


@pytest.mark.parametrize("headers", UNTYPED)
def test_bytes_that_are_nothing_are_422(client: httpx.Client, headers: dict[str, str]) -> None:
    """Bytes that are neither an image nor JSON are an invalid image, and broken JSON is malformed."""
    assert client.post("/v1/predict", content=b"\0\1\2", headers=headers).status_code == 422
    broken = client.post("/v1/predict", content=b'{"images": [', headers=headers)
    assert (broken.status_code, broken.json()["type"]) == (400, "urn:confgate:problem:malformed-request")
    assert client.post("/v1/predict", content=b"", headers=headers).status_code == 400


def in_url(image: bytes, head: str = "data:image/png;base64") -> str:
    return f"{head},{base64.b64encode(image).decode()}"


@pytest.mark.parametrize("head", ["data:image/png;base64", "data:;base64", "DATA:image/PNG;name=a.png;BASE64"])
def test_a_data_url_is_an_image(client: httpx.Client, head: str) -> None:
    """What a browser makes of a file is taken in JSON as it is, on /v1 and on /v2, beside plain base64."""
    images = [in_url(RED, head), base64.b64encode(BLUE).decode()]
    assert labels_of(client.post("/v1/predict", json={"images": images})) == ["red", "blue"]
    tensor = {"name": "image", "shape": [2], "datatype": "BYTES", "data": images}
    answer = client.post(INFER, json={"inputs": [tensor], "outputs": [{"name": "label"}]})
    assert answer.json()["outputs"][0]["data"] == ["red", "blue"]


@pytest.mark.parametrize("image", ["data:image/png", "data:image/png,abc", "data:,", "data:image/png;base64,*"])
def test_a_data_url_without_base64_is_422(client: httpx.Client, image: str) -> None:
    """A data URL that is cut or not base64 is an invalid image, with its place."""
    refused = client.post("/v1/predict", json={"images": [*IN_JSON["images"], image]})
    assert (refused.status_code, refused.json()["index"]) == (422, 1)
    assert refused.json()["type"] == "urn:confgate:problem:invalid-image"


@pytest.mark.parametrize("held_service", [{"max_images": 1100, "max_queue_images": 1100}], indirect=True)
def test_as_many_data_urls_as_images_are_allowed(held_service: HeldService) -> None:
    """The commas of data URLs are not counted as further values."""
    answer = held_service.client.post("/v1/predict", json={"images": [in_url(RED)] * 1100})
    assert labels_of(answer) == ["red"] * 1100


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"image": "x"}, "'image' is unknown"),
        ({"images": ["eA=="], "top_k": 1}, "'top_k' is unknown"),
        ({"\ud800" + "k" * 500: 1}, "is unknown"),
        ([], "a JSON list"),
        ({}, "at least one image"),
    ],
)
def test_an_unknown_key_is_named(client: httpx.Client, document: Any, says: str) -> None:
    """The answer says which key of a JSON body is wrong, and which one is expected."""
    refused = client.post("/v1/predict", content=json.dumps(document), headers={"Content-Type": "application/json"})
    assert refused.status_code == 400
    assert says in refused.json()["detail"]
    assert '{"images": [base64, …]}' in refused.json()["detail"]
    assert len(refused.json()["detail"]) < 300


NAMES = ["cat.png", "Kätzchen 猫.png", "", "n" * 300, 'a"b\\c.png']
SHOWN_NAMES = ["cat.png", "Kätzchen 猫.png", None, "n" * 255, 'a"b\\c.png']


def form_of(names: list[str], bodies: list[bytes]) -> dict[str, Any]:
    """A form as browsers and curl write it: names in UTF-8, with quotes escaped."""
    parts = []
    for name, body in zip(names, bodies, strict=True):
        quoted = name.replace("\\", "\\\\").replace('"', '\\"').encode()
        head = b'--x\r\nContent-Disposition: form-data; name="f"; filename="' + quoted + b'"\r\n\r\n'
        parts.append(head + body + b"\r\n")
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    return {"content": b"".join(parts) + b"--x--\r\n", "headers": headers}


def test_the_files_of_a_form_keep_their_names(client: httpx.Client) -> None:
    """Each answer to a form has its file's name, of at most 255 characters, or null; answers to other bodies do not."""
    answer = client.post("/v1/predict", **form_of(NAMES, [RED] * len(NAMES)))
    assert labels_of(answer) == ["red"] * len(NAMES)
    assert [prediction["file_name"] for prediction in answer.json()["predictions"]] == SHOWN_NAMES
    PredictResponse.model_validate_json(answer.content)
    for other in (client.post("/v1/predict", content=RED), client.post("/v1/predict", json=IN_JSON)):
        assert "file_name" not in other.json()["predictions"][0]


def test_an_error_has_the_name_of_its_file(client: httpx.Client) -> None:
    """A file that is no image is named where it takes a prediction's place, and where it fails the whole request."""
    form = form_of(["good.png", "bad.png"], [RED, b"text"])
    good, bad = client.post("/v1/predict", params={"partial": "true"}, **form).json()["predictions"]
    assert (good["file_name"], bad["file_name"], bad["error"]["index"]) == ("good.png", "bad.png", 1)
    refused = client.post("/v1/predict", **form)
    assert (refused.status_code, refused.json()["index"], refused.json()["file_name"]) == (422, 1, "bad.png")
    ProblemResponse.model_validate_json(refused.content)
    other = client.post("/v1/predict", json={"images": ["eA=="]})
    assert other.status_code == 422
    assert "file_name" not in other.json()


def test_no_file_name_is_in_the_log(service: Service, client: httpx.Client) -> None:
    """A file's name may say whose it is: the log has none, whatever becomes of the file."""
    for number, body in enumerate((RED, b"text")):
        form = form_of([f"private-{number}.png"], [body])
        client.post(
            "/v1/predict", content=form["content"], headers={**form["headers"], "X-Request-Id": f"named-{number}"}
        )
        service.wait_for_line(f"named-{number}")
    assert not any("private-" in line for line in service.lines)


@pytest.mark.parametrize(("body", "status"), [(b"", 200), (b"{}", 200), (b"\x0c", 400), (b" \n", 400)])
def test_an_optional_body_is_empty_or_json(client: httpx.Client, body: bytes, status: int) -> None:
    """White space, of any kind, is neither."""
    assert client.post("/v2/repository/index", content=body, headers=ADMIN).status_code == status
