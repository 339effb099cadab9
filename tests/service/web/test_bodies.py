"""How a body may come: asked for with a 100, without a Content-Type, as data URLs, and as files with names."""

import json
import socket
from urllib.parse import urlsplit

import pytest

from tests.conftest import ADMIN, RED, Service

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
