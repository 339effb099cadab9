"""Hostile kinds that would take most from others: files that are costly to decode, silent clients, trailers."""

import asyncio
import contextlib
import socket

from benchmarks.attacks.files import FILES
from benchmarks.soak.hostile import PNG, PREDICT, Kind, Sender, noise, post
from benchmarks.soak.wire import Address, Answer, exchange, head

HOLD_SECONDS = 2.0
ASSET = "/docs/assets/swagger-ui-bundle.js"
TOO_LATE = {408, 504}  # on a busy machine a large body may arrive too late, or its turn come too late


def costly_kinds() -> tuple[Kind, ...]:
    """The files of `benchmarks.attacks`, formats that are off, and trailers."""
    trailers = {
        "a trailer": (b"X-Trailer: a\r\n\r\n", {200, 400}),
        "an API key in a trailer": (b"X-API-Key: a\r\n\r\n", {200, 400, 401}),
        "trailers of 400 KB": (b"X-Trailer: a\r\n" * 28_000 + b"\r\n", {200, 400, 431}),
        "trailers without an end": (b"X-Trailer: a\r\n" * 1_000, {400, 408, 431}),
    }
    return (
        *(Kind(file.name, post(file.make(), file.content_type), file.allowed | TOO_LATE) for file in FILES),
        *(Kind(f"{name}, which is off", post(noise(name)), frozenset({415})) for name in ("TIFF", "BMP")),
        # A refusal while the body is read cannot name the request.
        *(
            Kind(name, _chunked(tail), frozenset(allowed | TOO_LATE), echoes_id=False)
            for name, (tail, allowed) in trailers.items()
        ),
    )


def slow_readers() -> tuple[Kind, ...]:
    """Clients that ask for much and never read it."""
    return tuple(
        Kind(f"never reads {target}", _never_reads(head("GET", target, {})), frozenset(), echoes_id=False)
        for target in (ASSET, "/v1/models")
    )


def _chunked(tail: bytes) -> Sender:
    async def send(address: Address, request_id: str) -> Answer | None:
        fields = {"X-Request-Id": request_id, "Content-Type": "image/png", "Transfer-Encoding": "chunked"}
        top = head("POST", PREDICT, {**fields, "Connection": "close"})
        return await exchange(address, b"%s%x\r\n%s\r\n0\r\n%s" % (top, len(PNG), PNG, tail))

    return send


def _never_reads(data: bytes) -> Sender:
    """Sends, and disconnects after a while. A stream would read by itself, so this is a bare socket."""

    async def send(address: Address, _: str) -> Answer | None:
        loop = asyncio.get_running_loop()
        with socket.socket() as one:
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(one, (address.host, address.port))
            with contextlib.suppress(ConnectionError):  # the service may close it at any time
                await loop.sock_sendall(one, data)
            await asyncio.sleep(HOLD_SECONDS)
        return None

    return send
