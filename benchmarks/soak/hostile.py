"""Hostile and invalid requests by name, each with the statuses that must answer it: `kinds`."""

import asyncio
import base64
import io
import json
import struct
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from PIL import Image

from benchmarks.soak.wire import Address, Answer, connected, exchange, head, request

PREDICT = "/v1/predict"
Sender = Callable[[Address, str], Awaitable[Answer | None]]


@dataclass(frozen=True)
class Kind:
    """A kind of request, and the statuses that may answer it besides 429; none if the client disconnects first."""

    name: str
    send: Sender
    allowed: frozenset[int]
    # The service cannot read the id if the bytes are not HTTP or the head never ends.
    echoes_id: bool = True


def noise(kind: str, size: tuple[int, int] = (200, 200)) -> bytes:
    file = io.BytesIO()
    Image.effect_noise(size, 80).convert("RGB").save(file, kind)
    return file.getvalue()


def png_claiming(width: int, height: int) -> bytes:
    """A PNG whose header claims that size and whose data is almost empty."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rest = chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + rest


def webp_claiming(width: int, height: int) -> bytes:
    """A WebP whose header claims a canvas of that size."""
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + size
    return b"RIFF" + struct.pack("<I", len(body)) + body


PNG, JPEG = noise("PNG"), noise("JPEG")
PARTS = b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n\r\n' * 20_000 + b"--x--\r\n"
FORM = "multipart/form-data; boundary=x"


def post(body: bytes, content_type: str = "image/png", target: str = PREDICT, **headers: str) -> Sender:
    async def send(address: Address, request_id: str) -> Answer | None:
        data = request(target, body, content_type, request_id=request_id, close=True, **headers)
        return await exchange(address, data)

    return send


def _with_length(length: int, body: bytes = PNG, pieces: int = 1, seconds: float = 0.0) -> Sender:
    """A Content-Length that is not that of the body, or a body that is sent slowly."""

    async def send(address: Address, request_id: str) -> Answer | None:
        fields = {"X-Request-Id": request_id, "Content-Type": "image/png", "Content-Length": str(length)}
        data = head("POST", PREDICT, {**fields, "Connection": "close"}) + body
        return await exchange(address, data, pieces=pieces, seconds=seconds)

    return send


def _raw(data: bytes) -> Sender:
    async def send(address: Address, _: str) -> Answer | None:
        return await exchange(address, data)

    return send


def _leave_after(share: float) -> Sender:
    """Disconnects after a share of the bytes. No answer is read, and other clients must not be affected."""

    async def send(address: Address, request_id: str) -> Answer | None:
        data = request(PREDICT, PNG, request_id=request_id)
        async with connected(address) as (_, writer):
            writer.write(data[: int(len(data) * share)])
            await writer.drain()
            await asyncio.sleep(0.01)
        return None

    return send


def _json(*images: object) -> bytes:
    return json.dumps({"images": images}).encode()


def kinds(body_seconds: float) -> tuple[Kind, ...]:
    """All kinds; `body_seconds` is how long the service waits for a body.

    408 is also allowed where a body is large or slow: on a busy machine it may arrive too late.
    """
    good = base64.b64encode(PNG).decode()
    table: list[tuple[str, Sender, set[int]]] = [
        ("bomb: PNG of 400 megapixels", post(png_claiming(20_000, 20_000)), {413}),
        ("bomb: WebP of 256 megapixels", post(webp_claiming(16_000, 16_000)), {413}),
        ("truncated PNG", post(PNG[: len(PNG) // 2]), {422}),
        ("truncated JPEG", post(JPEG[: len(JPEG) // 2]), {422}),
        ("bytes flipped", post(PNG[:60] + b"\xff" * 40 + PNG[100:]), {422}),
        ("polyglot: PDF before a PNG", post(b"%PDF-1.7 " + PNG), {422}),
        ("polyglot: PNG before a ZIP", post(PNG + b"PK\x03\x04<script>"), {200}),
        ("polyglot: GIF before a script", post(b"GIF89a/*" + b"\xff" * 40 + b"*/=1;alert(1)"), {422}),
        ("text", post(b"Dear service, what is this?"), {422}),
        ("empty body", post(b""), {400}),
        ("20,000 empty parts", post(PARTS, FORM), {413, 408}),
        ("form without an end", post(PARTS[:600], FORM), {400}),
        ("JSON that is none", post(b'{"images": [', "application/json"), {400}),
        ("JSON with one bad image", post(_json(good, "!"), "application/json"), {422}),
        ("one bad image, partial", post(_json(good, "!"), "application/json", f"{PREDICT}?partial=true"), {200}),
        ("unknown model", post(PNG, target=f"{PREDICT}?model=nope"), {404}),
        ("unknown policy", post(PNG, target=f"{PREDICT}?policy=nope"), {400}),
        ("unknown type", post(PNG, "text/html"), {415}),
        ("deadline of 1 ms", post(PNG, X_Request_Timeout_Ms="1"), {200, 408, 504}),
        ("announced: 1 GB", _with_length(10**9), {413}),
        ("announced too much", _with_length(len(PNG) + 500), {408}),
        ("slow body that comes", _with_length(len(PNG), PNG, 10, body_seconds / 2), {200, 408}),
        ("slow body that does not", _with_length(len(PNG), PNG, 10, body_seconds * 4), {408}),
    ]
    nameless: list[tuple[str, bytes, set[int]]] = [
        ("not HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60), {400}),
        ("head without an end", b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: a\r\n", {408}),
        ("head of 100 KB", b"GET /v1/models HTTP/1.1\r\nX-Long: " + b"a" * 100_000, {431}),
    ]
    return (
        *(Kind(name, send, frozenset(allowed)) for name, send, allowed in table),
        # The bytes after the announced ones are not HTTP: the service may answer them before the image.
        Kind("announced too little", _with_length(10), frozenset({400, 422}), echoes_id=False),
        *(Kind(name, _raw(data), frozenset(allowed), echoes_id=False) for name, data, allowed in nameless),
        *(
            Kind(f"disconnect after {share:.0%}", _leave_after(share), frozenset(), echoes_id=False)
            for share in (0.02, 0.5, 1.0)
        ),
    )
