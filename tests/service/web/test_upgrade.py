"""Requests that offer another protocol, as the HTTP client of the JDK does: they are answered as any other."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import RED, Service
from tests.service.web.test_uvicorn_protocol import CHUNK, CHUNKED, GOOD, LAST, connect, exchange, problem_in, read_all

UPGRADES = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n",
    "websocket": b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
}


@pytest.mark.parametrize("kind", UPGRADES)
@pytest.mark.parametrize("cut", [40, 130, -20, None])
def test_an_upgrade_is_ignored(service: Service, kind: str, cut: int | None) -> None:
    """A request that offers another protocol is answered over HTTP/1.1, with its body, and so are those after it."""
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n%sContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"
    request = head % (UPGRADES[kind], len(RED)) + RED
    with connect(service) as connection:
        connection.sendall(GOOD + request[:cut])
        if cut is not None:
            time.sleep(0.02)
            connection.sendall(request[cut:])
        connection.sendall(request + LAST)
        answer = read_all(connection)
    assert answer.count(b"HTTP/1.1 200 ") == 4
    assert answer.count(b'"label":"red"') == 2


def test_an_upgrade_smuggles_nothing(service: Service) -> None:
    """What an upgrade hides from the parser is held to the same rules as any other request."""
    two_lengths = b"POST / HTTP/1.1\r\n%sContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n" % UPGRADES["h2c"]
    trailer = CHUNKED.replace(b"Host: localhost\r\n", UPGRADES["h2c"]) + CHUNK + b"0\r\nX-API-Key: a\r\n\r\n"
    for request in (two_lengths, trailer):
        problem_in(exchange(service, request), 400, "malformed-http")


JAVA = """
import java.net.URI;
import java.net.http.*;
import java.nio.file.*;

class Post {
    public static void main(String[] arguments) throws Exception {
        var client = HttpClient.newHttpClient();
        for (int i = 0; i < 3; i++) {
            var body = HttpRequest.BodyPublishers.ofFile(Path.of(arguments[1]));
            var request = HttpRequest.newBuilder(URI.create(arguments[0])).header("Content-Type", "image/png");
            var response = client.send(request.POST(body).build(), HttpResponse.BodyHandlers.ofString());
            System.out.println(response.statusCode() + response.body());
        }
    }
}
"""


@pytest.mark.skipif(shutil.which("java") is None, reason="needs a JDK, whose HTTP client offers an upgrade to HTTP/2")
def test_the_http_client_of_java_gets_its_answer(service: Service, tmp_path: Path) -> None:
    """The default HTTP client of the JDK, which offers h2c with every request, can post images."""
    (tmp_path / "Post.java").write_text(JAVA)
    (tmp_path / "red.png").write_bytes(RED)
    command = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "Post.java", f"{service.url}/v1/predict", "red.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert all(line.startswith("200") and '"label":"red"' in line for line in lines)
