"""One client in a process of its own: it reads what to do as JSON from its input, and writes what it saw to its output.

    python -m benchmarks.attacks.client < ORDERS

A process for each, so that the Python of an attacker does not delay those that measure. It imports little and mostly
sleeps, because it shares the cores with the service.
"""

import contextlib
import json
import os
import resource
import select
import socket
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

ANSWER_SECONDS = 30.0
NO_ANSWER = 0
HEAD_END = b"\r\n\r\n"


class Orders(NamedTuple):
    """`request` is a file with the bytes to send, head included. `start` is a time of CLOCK_MONOTONIC."""

    port: int
    request: str
    start: float
    seconds: float
    connections: int = 1
    pause: float = 0.0
    most: int = 1_000_000  # requests of each connection; of one that never reads, connections in all
    fresh: bool = False  # a new connection for each request, as a probe makes
    reads: bool = True  # False: sends once on each connection, and never reads
    first: str = ""  # a file with a request that is sent `first_count` times before the start
    first_count: int = 0
    niceness: int = 0


class Seen(NamedTuple):
    """One request: when it began (seconds after the start), how long it took, its status (0: no answer)."""

    at: float
    milliseconds: float
    status: int


class Connection:
    """A keep-alive connection, opened again whenever the service has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    def ask(self, request: bytes) -> int:
        """The status of one answer, read whole; NO_ANSWER if there is none."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._port), ANSWER_SECONDS)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(ConnectionError):  # the service may have answered before it read everything
                self._socket.sendall(request)
            status, closes = self._read(self._socket)
        except (OSError, ValueError):
            status, closes = NO_ANSWER, True
        if closes:
            self.close()
        return status

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @staticmethod
    def _read(connection: socket.socket) -> tuple[int, bool]:
        content = b""
        while HEAD_END not in content:
            part = connection.recv(65536)
            if not part:
                raise ConnectionError("closed before an answer")
            content += part
        head, _, body = content.partition(HEAD_END)
        lines = head.decode("latin-1").lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:])
        missing = int(fields.get("content-length", "0")) - len(body)
        while missing > 0:
            part = connection.recv(min(missing, 1 << 20))
            if not part:
                raise ConnectionError("closed inside an answer")
            missing -= len(part)
        return int(lines[0].split(" ")[1]), fields.get("connection") == "close"


def converse(orders: Orders, request: bytes, seen: list[Seen]) -> None:
    """Asks again and again on one connection: one request in flight, then the pause."""
    connection = Connection(orders.port)
    first = Path(orders.first).read_bytes() if orders.first else b""
    for _ in range(orders.first_count):
        connection.ask(first)
    _sleep_until(orders.start)
    end = orders.start + orders.seconds
    for _ in range(orders.most):
        began = time.monotonic()
        if began >= end:
            break
        status = connection.ask(request)
        seen.append(Seen(began - orders.start, 1000 * (time.monotonic() - began), status))
        if orders.fresh:
            connection.close()
        # An attacker makes no pause, except where its connections are refused: it would only burn the service's CPU.
        time.sleep(orders.pause or (0.05 if status == NO_ANSWER else 0.0))
    connection.close()


def hold(orders: Orders, request: bytes, seen: list[Seen]) -> None:
    """Sends on many connections, never reads, and opens a connection again when the service closes it."""
    _sleep_until(orders.start)
    end = orders.start + orders.seconds
    poll, held = select.poll(), dict[int, socket.socket]()
    left = orders.most
    while (now := time.monotonic()) < end:
        if len(held) < orders.connections and left > 0:
            left -= 1
            one = _silent(orders.port, request)
            if one is None:
                seen.append(Seen(now - orders.start, 0.0, NO_ANSWER))
            else:
                held[one.fileno()] = one
                poll.register(one, select.POLLRDHUP)
        for descriptor, _ in poll.poll(0 if len(held) < orders.connections else 50):
            poll.unregister(descriptor)
            held.pop(descriptor).close()
    for one in held.values():
        one.close()


def _silent(port: int, request: bytes) -> socket.socket | None:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before connecting: it decides how much is taken
    one.settimeout(1.0)
    try:
        one.connect(("127.0.0.1", port))
        one.sendall(request)
    except OSError:
        one.close()
        return None
    return one


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def main() -> None:
    orders = Orders(**json.load(sys.stdin))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # some attackers hold more connections than usual
    os.nice(orders.niceness)
    request = Path(orders.request).read_bytes()
    seen: list[Seen] = []
    if orders.reads:
        threads = [threading.Thread(target=converse, args=(orders, request, seen)) for _ in range(orders.connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        hold(orders, request, seen)
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
