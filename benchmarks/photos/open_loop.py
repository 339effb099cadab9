"""An open loop: requests are sent when they are due, whether earlier ones are answered or not.

    python -m benchmarks.photos.open_loop URL BODY --rate 70 --seconds 15 --seed 0 [--header NAME VALUE …]

Arrivals are a Poisson process of the given rate. A latency counts from when the request was due, so that a slow server
cannot hide behind requests that it delayed ("coordinated omission"). A request takes an idle connection, or a new one
if there is none. Prints one JSON object, with all latencies, the CPU time of this process, and its own lag: how late it
sent a request because it had no CPU or its timer was coarse. The lag is part of the latency.
"""

import argparse
import contextlib
import json
import random
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

LAST_ANSWERS_SECONDS = 30  # how long after the last arrival answers are waited for


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """When requests are due, in seconds from the start. The same seed gives the same pattern at every rate."""
    generator, now = random.Random(seed), 0.0
    times: list[float] = []
    while True:
        now += generator.expovariate(1.0) / rate
        if now >= seconds:
            return times
        times.append(now)


def answer_length(received: bytes | bytearray) -> int | None:
    """How many bytes the HTTP answer at the beginning of `received` has; None while that is not known."""
    head_end = received.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    head = bytes(received[: head_end + 2]).lower()
    at = head_end + 4
    if b"\r\ntransfer-encoding: chunked\r\n" in head:
        while True:
            line_end = received.find(b"\r\n", at)
            if line_end < 0:
                return None
            size = int(bytes(received[at:line_end]).partition(b";")[0], 16)
            at = line_end + 2 + size + 2
            if size == 0:
                return at
            if at > len(received):
                return None
    _, _, rest = head.partition(b"\r\ncontent-length:")
    return at + int(rest.partition(b"\r\n")[0] or 0)


class Connection:
    """One connection, with at most one request in flight."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect_ex(address)  # goes on in the background; the socket is writable when it is connected
        self.due: float | None = None
        self.unsent = memoryview(b"")
        self.received = bytearray()

    def send(self) -> None:
        """Sends what the socket takes now; raises OSError if the connection is gone."""
        with contextlib.suppress(BlockingIOError):
            self.unsent = self.unsent[self.socket.send(self.unsent) :]

    def receive(self) -> bool | None:
        """Whether the whole answer is there and is a 200; None while it is not there. Raises OSError as `send` does."""
        try:
            data = self.socket.recv(262_144)
        except BlockingIOError:
            return None
        if not data:
            raise ConnectionResetError
        self.received += data
        length = answer_length(self.received)
        if length is None or len(self.received) < length:
            return None
        ok = self.received.split(b" ", 2)[1] == b"200"
        self.received.clear()
        return ok


class OpenLoop:
    """Sends the requests and collects what became of each: one thread, one selector, nothing computed in between."""

    def __init__(self, url: str, request: bytes) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.address, self.request = (parts.hostname, parts.port or 80), memoryview(request)
        self.selector = selectors.DefaultSelector()
        self.idle: list[Connection] = []
        self.latencies: list[float] = []
        self.errors = 0
        self.in_flight = 0
        self.connections = 0

    def run(self, times: Sequence[float]) -> dict[str, Any]:
        lags: list[float] = []
        cpu, started = time.process_time(), time.perf_counter()
        end = started + (times[-1] if times else 0) + LAST_ANSWERS_SECONDS
        while len(lags) < len(times) or self.in_flight:
            now = time.perf_counter()
            while len(lags) < len(times) and started + times[len(lags)] <= now:
                due = started + times[len(lags)]
                self._send(due)
                lags.append(time.perf_counter() - due)
            following = started + times[len(lags)] if len(lags) < len(times) else end
            if time.perf_counter() > end:
                break
            for key, events in self.selector.select(max(0.0, following - time.perf_counter())):
                self._ready(key.data, events)
        for key in list(self.selector.get_map().values()):
            key.data.socket.close()
        self.selector.close()
        ranked = sorted(lags) or [0.0]
        return {
            "sent": len(times),
            "latencies_ms": [round(1000 * latency, 2) for latency in self.latencies],
            "errors": self.errors + self.in_flight,
            "connections": self.connections,
            "lag_p50_ms": 1000 * ranked[len(ranked) // 2],
            "lag_p99_ms": 1000 * ranked[int(0.99 * len(ranked))],
            "client_cpu_seconds": time.process_time() - cpu,
        }

    def _send(self, due: float) -> None:
        if self.idle:
            connection = self.idle.pop()
        else:
            connection = Connection(self.address)
            self.connections += 1
            self.selector.register(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
        connection.due, connection.unsent = due, self.request
        self.in_flight += 1
        self._ready(connection, selectors.EVENT_WRITE)

    def _ready(self, connection: Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                connection.send()
                self._listen(connection)
            ok = connection.receive() if events & selectors.EVENT_READ else None
        except OSError:
            self._lost(connection)
            return
        if ok is None or connection.due is None:
            return
        self.in_flight -= 1
        if ok:
            self.latencies.append(time.perf_counter() - connection.due)
        else:
            self.errors += 1
        connection.due = None
        self.idle.append(connection)

    def _listen(self, connection: Connection) -> None:
        """Asks for writability only while there is something to write."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        if self.selector.get_key(connection.socket).events != wanted:
            self.selector.modify(connection.socket, wanted, connection)

    def _lost(self, connection: Connection) -> None:
        """A connection that the server closed; with a request in flight that is an error."""
        self.selector.unregister(connection.socket)
        connection.socket.close()
        if connection.due is not None:
            self.in_flight -= 1
            self.errors += 1
        else:
            self.idle.remove(connection)


def request_bytes(url: str, headers: Sequence[Sequence[str]], body: bytes) -> bytes:
    parts = urlsplit(url)
    lines = [f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("body", type=Path)
    parser.add_argument("--rate", type=float, required=True, help="requests per second")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--header", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    arguments = parser.parse_args()
    request = request_bytes(arguments.url, arguments.header, arguments.body.read_bytes())
    times = arrivals(arguments.rate, arguments.seconds, arguments.seed)
    print(json.dumps(OpenLoop(arguments.url, request).run(times)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
