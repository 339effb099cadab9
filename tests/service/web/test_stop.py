"""The end of a service: SIGTERM with requests in flight, from outside, as an orchestrator does it."""

import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.conftest import RED, Service, make_bundle
from tests.service.serving.test_load import wait_for

PNG = {"Content-Type": "image/png"}
HALF = len(RED) // 2
FIELDS = f"Host: localhost\r\nContent-Type: image/png\r\nContent-Length: {len(RED)}"
HEAD = f"POST /v1/predict HTTP/1.1\r\n{FIELDS}\r\n\r\n".encode()


def begin(service: Service) -> socket.socket:
    """A request that is in flight for as long as the test wants: half of its body is missing."""
    address = urlsplit(service.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=60)
    connection.sendall(HEAD + RED[:HALF])
    return connection


def finish(connection: socket.socket) -> bytes:
    with connection:
        connection.sendall(RED[HALF:])
        answer = b""
        while b"predictions" not in answer and (part := connection.recv(65536)):
            answer += part
    return answer


def in_flight(client: httpx.Client) -> int:
    lines = client.get("/metrics").text.splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("confgate_requests_in_flight "))))


def test_sigterm_answers_what_is_in_flight_and_refuses_the_rest(models: Path) -> None:
    """After SIGTERM every request in flight is answered in full; others get 503 on connections that were open before
    and on new ones; ready is 503 and live 200; and when the last answer is out the process ends with 0."""
    make_bundle(models)
    service = Service(models, "--drain-seconds", "60").wait_until_serving()
    options = {"base_url": service.url, "timeout": 60, "verify": False, "trust_env": False}
    with httpx.Client(**options) as before, httpx.Client(**options) as after:  # type: ignore[arg-type]
        assert before.post("/v1/predict", content=RED, headers=PNG).status_code == 200
        requests = [begin(service) for _ in range(5)]
        wait_for(lambda: in_flight(before) == 6)  # and the one that asks
        service.process.send_signal(signal.SIGTERM)
        wait_for(lambda: before.get("/v2/health/ready").status_code == 503)
        for client in (before, after):
            refused = client.post("/v1/predict", content=RED, headers=PNG)
            assert refused.status_code == 503
            assert refused.json()["type"] == "urn:confgate:problem:not-ready"
            assert client.get("/v2/health/live").status_code == 200
        assert service.process.poll() is None
        for connection in requests:
            answer = finish(connection)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b'"label":"red"' in answer
    assert service.wait_until_ended() == 0


def test_a_drain_ends_with_its_time(models: Path) -> None:
    """A request that never becomes whole does not keep the process: after the drain time it ends, with 1."""
    make_bundle(models)
    flags = ["--drain-seconds", "0.5", "--request-timeout-ms", "600000", "--body-timeout-ms", "600000"]
    service = Service(models, *flags).wait_until_serving()
    with begin(service), httpx.Client(base_url=service.url, timeout=60, verify=False, trust_env=False) as client:
        wait_for(lambda: in_flight(client) == 2)
        assert service.stop() == 1
