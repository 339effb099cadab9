"""Request ids, trace context and the log line of each request."""

import io
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from PIL import Image

from service.logs import GatheringHandler
from tests.conftest import GREY, RED, Service

PNG = {"Content-Type": "image/png"}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_given_request_id_is_taken_over(client: httpx.Client) -> None:
    """X-Request-Id comes back in the header and as the answer's id."""
    response = client.post("/v1/predict", content=RED, headers={**PNG, "X-Request-Id": "order-66:a/b"})
    assert response.headers["x-request-id"] == response.json()["id"] == "order-66:a/b"


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 129, "é".encode(), '"},{"'])
def test_without_a_usable_request_id_one_is_made(client: httpx.Client, given: str | bytes | None) -> None:
    """Where none is given, or one that could spoil a log, each request gets its own."""
    headers = PNG if given is None else {**PNG, "X-Request-Id": given}
    ids = {client.post("/v1/predict", content=RED, headers=headers).json()["id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(re.fullmatch(r"[0-9a-f]{32}", request_id) for request_id in ids)


def test_every_answer_has_a_request_id(client: httpx.Client) -> None:
    """Health, metrics, docs and errors carry X-Request-Id too."""
    for path in ("/v2/health/live", "/metrics", "/docs", "/nope"):
        assert client.get(path).headers["x-request-id"]


def test_a_trace_is_continued(client: httpx.Client) -> None:
    """A valid traceparent comes back with the same trace and a new parent; a broken one does not."""
    passed_on = client.get("/v1/models", headers={"traceparent": TRACE}).headers["traceparent"]
    assert re.fullmatch(r"00-4bf92f3577b34da6a3ce929d0e0e4736-[0-9a-f]{16}-01", passed_on)
    assert passed_on != TRACE
    for broken in ("00-0-0-01", TRACE.upper(), "00-" + "0" * 32 + "-00f067aa0ba902b7-01", TRACE + "\t-x"):
        assert "traceparent" not in client.get("/v1/models", headers={"traceparent": broken}).headers


def test_damaged_files_write_nothing_else_into_the_log(client: httpx.Client, service: Service) -> None:
    """Files that make Pillow warn are answered with 422, and every line of the log is still JSON of our own."""
    before = len(service.log())
    for body in (b"II*\0", b"II*\0\x08\0\0\0\x02\0" + b"\0\x01\x04\0\xff\0\0\0\0\x01\0\0" * 2, b"MM\0*" + b"\0" * 30):
        assert client.post("/v1/predict", content=body, headers=PNG).status_code == 422
    client.get("/v1/models", headers={"X-Request-Id": "log-test-5"})
    service.wait_for_line("log-test-5")
    assert {line["message"] for line in service.log()[before:] if line["level"] == "warning"} <= {"a batch failed"}


def test_a_request_leaves_one_line_that_tells_its_story(client: httpx.Client, service: Service) -> None:
    """The log has id, model, decisions and timing of a request, and nothing of its image."""
    files = [("f", ("secret-name.png", image)) for image in (RED, GREY)]
    headers = {"X-Request-Id": "log-test-1", "traceparent": TRACE}
    client.post("/v1/predict", files=files, headers=headers)
    client.post("/v1/predict", content=b"private words", headers={**PNG, "X-Request-Id": "log-test-2"})
    client.get("/v2/health/live", headers={"X-Request-Id": "log-test-3"})
    # A log line is written after its answer; the next answer's line comes after it.
    client.get("/v1/models", headers={"X-Request-Id": "log-test-4"})
    service.wait_for_line("log-test-4")
    lines = {line.get("request_id"): line for line in service.log()}
    story = lines["log-test-1"]
    assert (
        story.items()
        >= {
            "message": "request",
            "method": "POST",
            "path": "/v1/predict",
            "status": 200,
            "model": "colours",
            "version": 2,
            "images": 2,
            "rejected": 1,
            "policy": "misclassified",
        }.items()
    )
    assert story["milliseconds"] >= 0
    assert story["traceparent"].startswith("00-4bf92f3577b34da6a3ce929d0e0e4736-")
    assert lines["log-test-2"]["status"] == 422
    assert "not a PNG" in lines["log-test-2"]["problem"]
    assert "log-test-3" not in lines
    text = "".join(service.lines)
    assert "secret-name" not in text
    assert "private words" not in text


def test_warnings_of_libraries_stay_out_of_the_log(client: httpx.Client, service: Service) -> None:
    """An image that makes Pillow warn leaves its request's line and nothing else: every line is JSON."""
    picture, exif = io.BytesIO(), b"Exif\0\0II*\0\x08\0\0\0\xff\xff"
    Image.new("RGB", (8, 8)).save(picture, "JPEG", exif=exif)
    headers = {"Content-Type": "image/jpeg", "X-Request-Id": "odd-exif"}
    assert client.post("/v1/predict", content=picture.getvalue(), headers=headers).status_code == 200
    service.wait_for_line("odd-exif")
    assert not any("EXIF" in line["message"] for line in service.log())


def test_no_line_is_lost_while_others_are_written(tmp_path: Path) -> None:
    """Many threads add lines while the log is being written: each line is there, once."""
    file = (tmp_path / "log").open("wb")
    handler = GatheringHandler(file.fileno())

    def add(thread: int) -> None:
        for number in range(2_000):
            handler.add(b"%d-%d" % (thread, number))
            if number % 50 == 0:
                handler.flush()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    handler.flush(60)
    file.close()
    assert sorted((tmp_path / "log").read_text().split()) == sorted(f"{a}-{b}" for a in range(8) for b in range(2_000))
