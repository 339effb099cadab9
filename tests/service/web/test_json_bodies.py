"""Operators' requests whose body never comes whole."""

import socket
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import ADMIN, OPERATOR, Service


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/v1/models/colours/versions/1/gate"), ("POST", "/v2/repository/models/colours/load")],
)
def test_a_client_that_disconnects_is_no_error_of_the_service(
    service: Service, client: httpx.Client, method: str, path: str
) -> None:
    """A connection that ends within the body is one line in the log without a status: no 5xx and no traceback."""
    before, address = len(service.lines), urlsplit(service.url)
    name = f"left-{method}"
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {OPERATOR}\r\nX-Request-Id: {name}\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=60) as connection:
        connection.sendall(head.encode() + b'Content-Length: 100\r\n\r\n{"po')
    service.wait_for_line(name)
    # What the server itself has to say of that request comes before the line of the next.
    assert client.get("/v1/gates/history", headers={**ADMIN, "X-Request-Id": f"after-{name}"}).status_code == 200
    service.wait_for_line(f"after-{name}")
    lines = service.log()[before:]
    assert [line["status"] for line in lines if line.get("request_id") == name] == [0]
    assert not [line for line in lines if line["level"] == "error"]
    assert "Traceback" not in "".join(service.lines[before:])
