"""Clients that hold connections, and do not send, read or end what they began: others are answered all the same."""

import contextlib
import http.client
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from service.web.connections import connection_limit
from service.web.keys import new_key
from tests.conftest import GREEN, RED, Service, make_bundle
from tests.service.conftest import HeldService
from tests.service.serving.test_load import hold, wait_for

PNG = {"Content-Type": "image/png"}
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
ASSET = b"GET /docs/assets/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
# So many that the answers are larger than the buffers of the kernel.
ASSETS, SCRAPES = 8, 60
GREEN_REQUEST = (
    b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    + b"Content-Length: %d\r\n\r\n" % len(GREEN)
    + GREEN
)
WRITE_MS = 1000
KEY, KEY_LINE = new_key("good", "client")


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that needs a key, allows two requests in flight, and waits 1 s for a client that does not read."""
    models = tmp_path_factory.mktemp("strict") / "models"
    make_bundle(models)
    flags = ("--api-keys", KEY_LINE, "--max-requests", "2", "--write-timeout-ms", str(WRITE_MS))
    running = Service(models, *flags, "--keep-alive-seconds", "1").wait_until_serving()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def cramped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that may have 64 open files."""
    models = tmp_path_factory.mktemp("cramped") / "models"
    make_bundle(models)
    running = Service(models)
    resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (64, 64))  # long before it has loaded
    yield running.wait_until_serving()
    assert running.stop() == 0


def connect(service: Service | HeldService, send: bytes = b"", receive_buffer: int | None = None) -> socket.socket:
    address = urlsplit(service.url)
    connection = socket.socket()
    connection.settimeout(30)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((address.hostname, address.port))
    connection.sendall(send)
    return connection


def read_all(connection: socket.socket) -> bytes:
    answer = b""
    while received := connection.recv(65536):
        answer += received
    return answer


def ask(service: Service | HeldService, data: bytes = LIVE) -> bytes:
    """The first bytes of the answer to a request over a connection of its own."""
    with connect(service, data) as connection:
        return connection.recv(65536)


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def answers_live(service: Service) -> bool:
    try:
        return ask(service).startswith(b"HTTP/1.1 200 ")
    except OSError:
        return False


def in_flight(service: Service | HeldService) -> int:
    lines = httpx.get(f"{service.url}/metrics", trust_env=False).text.splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("confgate_requests_in_flight "))))


def test_clients_without_a_key_take_no_place_from_those_with_one(strict: Service) -> None:
    """More clients than requests are allowed in flight do not read a public file, and a good key is answered."""
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connect(strict, ASSETS * ASSET, receive_buffer=4096))
        wait_for(lambda: in_flight(strict) == 5)  # and the one that asks
        headers = {**PNG, "X-API-Key": KEY}
        response = httpx.post(f"{strict.url}/v1/predict", content=RED, headers=headers, trust_env=False)
    assert response.status_code == 200


@pytest.mark.parametrize("requests", [ASSETS * ASSET, SCRAPES * SCRAPE], ids=["files", "metrics"])
def test_who_does_not_read_is_disconnected(strict: Service, requests: bytes) -> None:
    """A client that does not read its answers loses its connection, and its request ends without an error."""
    wait_for(lambda: in_flight(strict) == 1)
    with connect(strict, requests, receive_buffer=4096) as connection:
        wait_for(lambda: in_flight(strict) == 2)
        wait_for(lambda: in_flight(strict) == 1)
        with pytest.raises(ConnectionResetError):
            read_all(connection)
    assert not any(line["level"] == "error" for line in strict.log())


def test_who_reads_slowly_is_not_disconnected(strict: Service) -> None:
    """A client that needs longer than the write timeout for its answers, but reads all the while, gets them whole."""
    started = time.monotonic()
    answer = b""
    with connect(strict, 3 * ASSET, receive_buffer=65536) as connection:
        while answer.count(b"HTTP/1.1 200 ") < 3 and (received := connection.recv(131072)):
            answer += received
            time.sleep(0.05)
    assert answer.count(b"HTTP/1.1 200 ") == 3
    assert time.monotonic() - started > WRITE_MS / 1000


def test_an_idle_connection_is_closed_in_time(strict: Service) -> None:
    """A connection without a new request is closed after the time that is set for it."""
    with connect(strict, LIVE) as connection:
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("sent", [b"", b"GET /v2/hea", LIVE], ids=["silent", "half a head", "idle"])
def test_idle_connections_do_not_shut_others_out(cramped: Service, sent: bytes) -> None:
    """With 64 descriptors, 80 connections that do nothing leave room for health probes and predictions."""
    with contextlib.ExitStack() as stack:
        for _ in range(80):
            stack.enter_context(connect(cramped, sent))
            time.sleep(0.002)  # not faster than they are accepted
        for _ in range(5):
            assert ask(cramped).startswith(b"HTTP/1.1 200 ")
        assert ask(cramped, GREEN_REQUEST).startswith(b"HTTP/1.1 200 ")


def test_a_burst_of_connections_is_survived(cramped: Service) -> None:
    """When more clients connect at once than there are descriptors, the service goes on."""
    address = urlsplit(cramped.url)
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex((address.hostname, address.port))
        wait_for(lambda: answers_live(cramped))
    assert answers_live(cramped)
    assert not any(line["level"] == "error" for line in cramped.log())


def test_files_that_nobody_reads_do_not_shut_others_out(cramped: Service) -> None:
    """Nor do as many clients that hold a file open, because they do not read it."""
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(connect(cramped, ASSETS * ASSET, receive_buffer=4096))
            time.sleep(0.002)
        wait_for(lambda: answers_live(cramped))
        wait_for(lambda: ask(cramped, GREEN_REQUEST).startswith(b"HTTP/1.1 200 "))


@pytest.mark.parametrize("held_service", [{"max_connections": 3}], indirect=True)
def test_the_longest_idle_connection_is_closed_first(held_service: HeldService) -> None:
    """At the limit a new client takes the place of the one whose last answer is longest ago."""
    first, second, third = (connect(held_service) for _ in range(3))
    for connection in (first, second, third, first):
        connection.sendall(LIVE)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    with first, second, third, connect(held_service, LIVE) as fourth:
        assert fourth.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert read_all(second) == b""
        assert [is_open(connection) for connection in (first, third, fourth)] == [True] * 3


@pytest.mark.parametrize("held_service", [{"max_connections": 2}], indirect=True)
def test_without_an_idle_connection_a_new_one_gets_503(held_service: HeldService) -> None:
    """While all connections have requests in flight, a new one is answered with 503 and closed; health is answered."""
    with ThreadPoolExecutor(2) as pool:
        jobs = [hold(held_service, pool), pool.submit(held_service.client.post, "/v1/predict", content=GREEN)]
        wait_for(lambda: held_service.app.state.lifecycle.in_flight == 2)
        with connect(held_service, GREEN_REQUEST) as connection:
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"connection: close" in head
        assert b"urn:confgate:problem:too-many-connections" in body
        with connect(held_service, LIVE) as connection:
            assert read_all(connection).startswith(b"HTTP/1.1 200 ")
        held_service.held.go_on.set()
        assert [job.result().status_code for job in jobs] == [200, 200]
    assert ask(held_service, GREEN_REQUEST).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("held_service", [{"max_connections": 2, "write_timeout_ms": 600_000}], indirect=True)
def test_who_does_not_read_gives_way(held_service: HeldService) -> None:
    """Where connections are short, clients that do not read lose theirs before the write timeout."""
    with connect(held_service, ASSETS * ASSET, 4096), connect(held_service, ASSETS * ASSET, 4096):
        wait_for(lambda: held_service.app.state.lifecycle.in_flight == 2)
        wait_for(lambda: ask(held_service, GREEN_REQUEST).startswith(b"HTTP/1.1 200 "))
        wait_for(lambda: held_service.app.state.lifecycle.in_flight <= 1)


def test_a_half_closed_client_gets_its_answer(held_service: HeldService) -> None:
    """A client that shuts down its sending side while its image is computed gets the answer, then the close."""
    with ThreadPoolExecutor(1) as pool, connect(held_service) as raw:
        first = hold(held_service, pool)
        raw.sendall(GREEN_REQUEST)
        library = http.client.HTTPConnection("127.0.0.1", held_service.port, timeout=30)
        library.request("POST", "/v1/predict", GREEN, PNG)
        for connection in (raw, library.sock):
            connection.shutdown(socket.SHUT_WR)
        wait_for(lambda: held_service.model.queues["forward"].images == 2)
        assert raw.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"  # by then the service knows
        held_service.held.go_on.set()
        answer, read_by_library = read_all(raw), library.getresponse()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'"label":"green"' in answer
        assert (read_by_library.status, b'"label":"green"' in read_by_library.read()) == (200, True)
        library.close()
        assert first.result().status_code == 200


def test_a_half_closed_client_of_http_1_0_gets_one_answer(held_service: HeldService) -> None:
    """HTTP/1.0 has no interim answers, so such a client gets none."""
    with ThreadPoolExecutor(1) as pool, connect(held_service) as connection:
        first = hold(held_service, pool)
        connection.sendall(GREEN_REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"))
        connection.shutdown(socket.SHUT_WR)
        wait_for(lambda: held_service.model.queues["forward"].images == 1)
        time.sleep(0.3)  # the service begins to watch for a disconnect
        held_service.held.go_on.set()
        answer = read_all(connection)
        assert first.result().status_code == 200
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"label":"green"' in answer


def test_half_closed_clients_that_sent_ahead_get_all_answers(held_service: HeldService) -> None:
    """Of two requests that were sent together before the sending side was shut down, both are answered."""
    with ThreadPoolExecutor(1) as pool, connect(held_service) as connection:
        first = hold(held_service, pool)
        connection.sendall(GREEN_REQUEST + LIVE)
        connection.shutdown(socket.SHUT_WR)
        wait_for(lambda: held_service.model.queues["forward"].images == 1)
        time.sleep(0.3)  # the service begins to watch for a disconnect
        held_service.held.go_on.set()
        assert read_all(connection).count(b"HTTP/1.1 200 ") == 2
        assert first.result().status_code == 200


@pytest.mark.parametrize("half_first", [False, True], ids=["closed", "half-closed, then closed"])
def test_a_client_that_is_gone_is_cancelled(held_service: HeldService, half_first: bool) -> None:
    """Images of a client that closed its connection, at once or in two steps, are dropped from the queue."""
    with ThreadPoolExecutor(1) as pool:
        first = hold(held_service, pool)
        queue = held_service.model.queues["forward"]
        connection = connect(held_service, GREEN_REQUEST)
        wait_for(lambda: queue.images == 1)
        if half_first:
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(65536, socket.MSG_PEEK) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.close()
        wait_for(lambda: queue.images == 0)
        wait_for(lambda: held_service.metric("confgate_requests_total", route="/v1/predict", outcome="cancelled") == 1)
        held_service.held.go_on.set()
        assert first.result().status_code == 200
    assert held_service.held.batches == [1]


@pytest.mark.parametrize(
    ("asked", "descriptors", "expected"),
    [(0, 64, 16), (0, 1024, 496), (0, 1_048_576, 4096), (0, 16, 4), (100, 1024, 100), (5000, 1024, 992)],
)
def test_the_limit_follows_from_the_descriptors(
    monkeypatch: pytest.MonkeyPatch, asked: int, descriptors: int, expected: int
) -> None:
    """Unless it is set, half of the descriptors are for connections; a higher setting is cut to what is possible."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert connection_limit(asked) == expected
