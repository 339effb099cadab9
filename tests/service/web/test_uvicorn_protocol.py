"""Clients that do not speak HTTP, or take their time: they get a problem like all others, or a closed connection."""

import json
import re
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.conftest import OPERATOR, RED, Service, make_bundle
from tests.service.conftest import HeldService

HEAD_MS = 150
GOOD = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CHUNKED = (
    b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
)
CHUNK = b"%x\r\n%s\r\n" % (len(RED), RED)


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that waits 150 ms for a request's head."""
    models = tmp_path_factory.mktemp("hurried") / "models"
    make_bundle(models)
    running = Service(models, "--body-timeout-ms", str(HEAD_MS)).wait_until_serving()
    yield running
    assert running.stop() == 0


def connect(service: Service | HeldService) -> socket.socket:
    address = urlsplit(service.url)
    return socket.create_connection((address.hostname, address.port), timeout=30)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the service closes the connection."""
    answer = b""
    while received := connection.recv(65536):
        answer += received
    return answer


def exchange(service: Service, data: bytes) -> bytes:
    with connect(service) as connection:
        connection.sendall(data)
        return read_all(connection)


def problem_in(answer: bytes, status: int, kind: str) -> tuple[dict, dict]:
    """Headers and body of the one answer that was sent, which closes the connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert first.startswith(f"HTTP/1.1 {status} ")
    assert int(headers["content-length"]) == len(body)
    assert headers["connection"] == "close"
    problem = json.loads(body)
    if headers["content-type"] == "application/problem+json":
        assert problem["type"] == f"urn:confgate:problem:{kind}"
        assert problem["request_id"] == headers["x-request-id"]
    return headers, problem


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60),
        b"GET /v1/models HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["words", "version", "TLS", "header", "negative length", "two lengths", "path", "CONNECT"],
)
def test_what_is_no_http_is_a_problem(service: Service, data: bytes) -> None:
    """Bytes that are no HTTP request get a 400 problem with a request id and a sentence that says what to check."""
    _, problem = problem_in(exchange(service, data), 400, "malformed-http")
    assert "Content-Length" in problem["detail"]


def test_a_request_id_is_kept_where_it_could_be_read(service: Service) -> None:
    """The id of a request that turns out malformed after its X-Request-Id is the client's own, also in the log."""
    data = b"GET / HTTP/1.1\r\nX-Request-Id: broken-7\r\nHost: localhost\r\nbad header\r\n\r\n"
    headers, _ = problem_in(exchange(service, data), 400, "malformed-http")
    assert headers["x-request-id"] == "broken-7"
    service.wait_for_line("broken-7")


def test_malformed_http_on_v2_has_the_error_of_v2(service: Service) -> None:
    """Under /v2 the answer is {"error"}, as that protocol wants it."""
    _, problem = problem_in(exchange(service, b"GET /v2 HTTP/1.1\r\nbad header\r\n\r\n"), 400, "malformed-http")
    assert problem.keys() == {"error"}


def test_a_head_that_never_ends_is_408(hurried: Service) -> None:
    """A client that begins a request and stops is told so after the head's time, and the connection is closed."""
    answer = exchange(hurried, b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    _, problem = problem_in(answer, 408, "head-timeout")
    assert "0.15 s" in problem["detail"]


def test_a_head_that_drips_is_408(hurried: Service) -> None:
    """Further bytes do not give a head more time."""
    with connect(hurried) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\n")
        connection.settimeout(0.02)
        answer = b""
        for _ in range(3000):
            try:
                connection.sendall(b"X")
                answer = connection.recv(65536)
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break  # it was closed between two drops
    assert not answer or answer.startswith(b"HTTP/1.1 408 ")


def test_a_silent_connection_is_closed(hurried: Service) -> None:
    """Who connects and says nothing is hung up on, with nothing to answer; so is who only sends a stray line."""
    assert exchange(hurried, b"") == b""
    assert exchange(hurried, b"\r\n") == b""
    with connect(hurried) as connection:
        connection.sendall(GOOD)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"\r\n")
        assert read_all(connection) == b""


def test_an_idle_connection_stays(hurried: Service) -> None:
    """A connection that had its answer may wait longer than a head may take before it asks again."""
    with connect(hurried) as connection:
        for _ in range(2):
            connection.sendall(GOOD)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
            time.sleep(3 * HEAD_MS / 1000)


def test_a_head_without_end_is_431(service: Service) -> None:
    """A head is read up to 64 KiB; what is longer is refused before it is complete."""
    with connect(service) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nX-Long: " + b"a" * 70_000)
        problem_in(read_all(connection), 431, "head-too-large")


def test_after_all_this_the_service_answers(hurried: Service) -> None:
    """A good request in two pieces, its head split in the middle, is answered."""
    with connect(hurried) as connection:
        connection.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Le")
        connection.sendall(b"ngth: %d\r\nContent-Type: image/png\r\n\r\n" % len(RED) + RED)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["predictions"][0]["label"] == "red"


def test_answers_without_a_body_and_in_parts_are_whole(service: Service) -> None:
    """HEAD, an expected 100 Continue and a file in many parts each come out as HTTP wants them."""
    head = exchange(
        service, b"HEAD /docs/assets/swagger-ui.css HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 200 ")
    assert head.endswith(b"\r\n\r\n")
    file = exchange(
        service, b"GET /docs/assets/swagger-ui.css HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    length = re.search(rb"content-length: (\d+)", file)
    assert length is not None
    assert len(file.partition(b"\r\n\r\n")[2]) == int(length[1]) > 100_000
    with connect(service) as connection:
        fields = f"Host: localhost\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: {len(RED)}\r\n\r\n"
        connection.sendall(b"POST /v1/predict HTTP/1.1\r\n" + fields.encode())
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(RED)
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "request_bytes",
    [
        CHUNKED + CHUNK + b"0\r\nX-Checksum: 7\r\n\r\n",
        b"GET /v1/gates HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        + f"0\r\nX-API-Key: {OPERATOR}\r\n\r\n".encode(),
    ],
    ids=["checksum", "key"],
)
def test_trailers_are_refused(service: Service, request_bytes: bytes) -> None:
    """Fields after a chunked body never become headers: the request is refused and the connection closed."""
    _, problem = problem_in(exchange(service, request_bytes), 400, "malformed-http")
    assert "trailers" in problem["detail"]


@pytest.mark.parametrize("piece", [b"X: 1\r\n" * 8192, b"x" * 65536], ids=["many fields", "one long field"])
def test_endless_trailers_are_cut_off(service: Service, piece: bytes) -> None:
    """Whether many or one without end, trailers are not gathered: the connection is closed after the first."""
    with connect(service) as connection:
        connection.sendall(CHUNKED + CHUNK + b"0\r\nX-First: ")
        with pytest.raises(OSError, match=r"reset|Broken"):  # noqa: PT012 - one of many sends will fail
            for _ in range(300):
                connection.sendall(piece)


def test_a_chunked_body_may_come_byte_by_byte(service: Service) -> None:
    """Wherever a chunked body is cut into pieces, it is read whole."""
    half = len(RED) // 2
    pieces = [b"%x\r\n%s\r\n" % (len(part), part) for part in (RED[:half], RED[half:])]
    with connect(service) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(CHUNKED.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close"))
        for byte in b"".join(pieces) + b"0\r\n\r\n":
            connection.sendall(bytes([byte]))
            time.sleep(0.0005)
        assert b'"label":"red"' in read_all(connection)


def test_a_body_is_not_counted_as_the_next_head(held_service: HeldService) -> None:
    """A long body and the beginning of the next request may be read together: only the head's bytes are limited."""
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"
    held_service.held.go_on.clear()
    with connect(held_service) as connection:
        # While the first request is in flight, the rest stays unread; then it is read at once.
        connection.sendall(head % len(RED) + RED + head % 200_000)
        held_service.held.wait_until_entered()
        connection.sendall(bytes(200_000) + LAST[:20])
        held_service.held.go_on.set()
        answer = b""
        while answer.count(b"HTTP/1.1 ") < 2 and (received := connection.recv(65536)):
            answer += received
        connection.sendall(LAST[20:])
        answer += read_all(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"422", b"200"]


def test_a_head_without_end_is_431_also_after_another_request(service: Service) -> None:
    """A head whose beginning came together with another request is limited too."""
    with connect(service) as connection:
        connection.sendall(GOOD + b"GET /v1/models HTTP/1.1\r\nX-Long: ")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        for _ in range(2):
            connection.sendall(b"a" * 35_000)
            time.sleep(0.02)
        problem_in(read_all(connection), 431, "head-too-large")


def test_few_requests_are_read_ahead(service: Service) -> None:
    """Of a thousand requests sent together a part is answered, in order; the last answer says that it is the last."""
    with connect(service) as connection:
        connection.sendall(1000 * GOOD)
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    assert 10 < answer.count(b"HTTP/1.1 200 ") < 100
    assert b"connection: close" in answer[answer.rindex(b"HTTP/1.1 200 ") :]
