"""What clients see while a service drains: whole answers that say the connection ends, and never a reset."""

import signal
import socket
from pathlib import Path

from tests.conftest import RED, Service, make_bundle
from tests.faults.processes import client_of, connect
from tests.faults.test_end import HALF, wait_until_in_flight
from tests.service.serving.test_load import wait_for

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = 8_000_000


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def predict(path: str, size: int) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + bytes(size)


# Requests, with the status of their answers.
WHILE_DRAINING = [
    (get("/v2/health/live"), 200),
    (get("/v2/health/ready"), 503),
    (get("/metrics"), 200),
    (get("/v1/models"), 200),
    (get("/nowhere"), 404),
    (b"not HTTP\r\n\r\n", 400),
    (predict("/v1/predict", 100), 503),
    (predict("/v1/predict", LARGE), 503),
    (predict("/v2/models/colours/infer", LARGE), 503),
    (predict("/nowhere", LARGE), 404),
]


def read_all(connection: socket.socket) -> bytes:
    with connection:
        answer = b""
        while received := connection.recv(65536):
            answer += received
    return answer


def idle(service: Service) -> socket.socket:
    """A connection that has had an answer."""
    connection = connect(service, LIVE)
    assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    return connection


def test_every_answer_of_a_drain_is_whole_and_the_last_of_its_connection(models: Path) -> None:
    """From SIGTERM on every answer carries `Connection: close` and is followed by the close, on new connections, on
    idle ones and to the request in flight; predictions get 503, also with a large body."""
    make_bundle(models)
    service = Service(models, "--drain-seconds", "60").wait_until_serving()
    with client_of(service) as client:
        in_flight = connect(service, HALF)
        wait_until_in_flight(client, 1)
        before = [idle(service) for _ in WHILE_DRAINING]
        service.process.send_signal(signal.SIGTERM)
        wait_for(lambda: client.get("/v2/health/ready").status_code == 503)
    for connections in (before, [connect(service) for _ in WHILE_DRAINING]):
        for connection, (request, status) in zip(connections, WHILE_DRAINING, strict=True):
            connection.sendall(request)
            answer = read_all(connection)
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:500]
            assert answer.lower().count(b"connection: close") == 1
            if status == 503 and b"POST /v1" in request:
                assert b"urn:confgate:problem:not-ready" in answer
    in_flight.sendall(RED[20:])
    answer = read_all(in_flight)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"label":"red"' in answer
    assert b"connection: close" in answer
    assert service.wait_until_ended() == 0
