"""An open loop: requests are sent when they are due, whether earlier ones are answered or not.

    python -m benchmarks.photos.open_loop URL BODY --rate 70 --seconds 15 --seed 0 [--header NAME VALUE …]

Arrivals are a Poisson process of the given rate. A latency counts from when the request was due, so that a slow server
cannot hide behind requests that it delayed ("coordinated omission"). A request takes an idle connection, or a new one
if there is none. Prints one JSON object, with all latencies, the CPU time of this process, and its own lag: how late it
sent a request because it had no CPU or its timer was coarse. The lag is part of the latency.
"""

import argparse
import asyncio
import contextlib
import json
import random
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


class Connection(asyncio.Protocol):
    """One connection, with at most one request in flight."""

    def __init__(self, loop: "OpenLoop") -> None:
        self.loop = loop
        self.transport: asyncio.Transport | None = None
        self.due: float | None = None
        self.received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self, due: float) -> None:
        assert self.transport is not None
        self.due = due
        self.transport.write(self.loop.request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        length = answer_length(self.received)
        if length is None or len(self.received) < length or self.due is None:
            return
        ok = self.received.split(b" ", 2)[1] == b"200"
        closes = b"\r\nconnection: close\r\n" in bytes(self.received[: self.received.find(b"\r\n\r\n") + 2]).lower()
        self.received.clear()
        due, self.due = self.due, None
        if not closes:
            self.loop.idle.append(self)
        elif self.transport is not None:
            self.transport.close()
        self.loop.answered(due, ok)

    def connection_lost(self, _: Exception | None) -> None:
        if self in self.loop.idle:
            self.loop.idle.remove(self)
        if self.due is not None:
            due, self.due = self.due, None
            self.loop.answered(due, False)


class OpenLoop:
    """Sends the requests and collects what became of each."""

    def __init__(self, url: str, request: bytes) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.host, self.port, self.request = parts.hostname, parts.port or 80, request
        self.idle: list[Connection] = []
        self.latencies: list[float] = []
        self.errors = 0
        self.in_flight = 0
        self.connections = 0
        self.last_sent = False
        self.all_answered = asyncio.Event()

    def answered(self, due: float, ok: bool) -> None:
        self.in_flight -= 1
        if ok:
            self.latencies.append(time.perf_counter() - due)
        else:
            self.errors += 1
        if self.last_sent and not self.in_flight:
            self.all_answered.set()

    async def _send(self, due: float) -> None:
        if self.idle:
            self.idle.pop().send(due)
            return
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self), self.host, self.port
            )
        except OSError:
            self.answered(due, False)
            return
        self.connections += 1
        connection.send(due)

    async def run(self, times: Sequence[float]) -> dict[str, Any]:
        lags, sending = [], set()
        cpu, started = time.process_time(), time.perf_counter()
        for offset in times:
            due = started + offset
            wait = due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            self.in_flight += 1
            lags.append(time.perf_counter() - due)
            if self.idle:
                self.idle.pop().send(due)
            else:
                task = asyncio.create_task(self._send(due))
                sending.add(task)
                task.add_done_callback(sending.discard)
            await asyncio.sleep(0)  # answers that came meanwhile give their connections back
        self.last_sent = True
        if self.in_flight:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.all_answered.wait(), LAST_ANSWERS_SECONDS)
        return {
            "sent": len(times),
            "latencies_ms": [round(1000 * latency, 2) for latency in self.latencies],
            "errors": self.errors + self.in_flight,
            "connections": self.connections,
            "lag_p50_ms": 1000 * sorted(lags)[len(lags) // 2] if lags else 0.0,
            "lag_p99_ms": 1000 * sorted(lags)[int(0.99 * len(lags))] if lags else 0.0,
            "client_cpu_seconds": time.process_time() - cpu,
        }


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
    print(json.dumps(asyncio.run(OpenLoop(arguments.url, request).run(times))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
