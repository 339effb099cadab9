"""HTTP as bytes on a socket: the soak must send and see what an HTTP library would repair, reject or retry."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

TIMEOUT_SECONDS = 60.0
_numbers = itertools.count(1)


class Broken(Exception):  # noqa: N818 - the name says what happened
    """The service violated HTTP; the message says how."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Address:
    host: str
    port: int


def new_id() -> str:
    return f"soak-{next(_numbers)}"


def head(method: str, target: str, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def request(
    target: str,
    body: bytes = b"",
    content_type: str = "image/png",
    *,
    request_id: str,
    method: str = "POST",
    close: bool = False,
    **headers: str,
) -> bytes:
    """A whole, well-formed request."""
    fields = {"X-Request-Id": request_id, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if method == "POST":
        fields |= {"Content-Type": content_type, "Content-Length": str(len(body))}
    if close:
        fields["Connection"] = "close"
    return head(method, target, fields) + body


@asynccontextmanager
async def connected(address: Address) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Reads one answer, by its Content-Length."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            top = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = top.rstrip("\r\n").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(int(headers["content-length"]))
    except asyncio.IncompleteReadError as error:
        raise Broken(f"the connection ended inside or before an answer, after {error.partial[:80]!r}") from error
    except ConnectionError as error:
        raise Broken(f"the connection broke before an answer: {error!r}") from error
    except TimeoutError as error:
        raise Broken(f"no answer within {TIMEOUT_SECONDS:g} s") from error
    except (KeyError, ValueError) as error:
        raise Broken(f"the answer cannot be parsed: {error!r}") from error
    version, _, rest = first.partition(" ")
    if version != "HTTP/1.1":
        raise Broken(f"the answer is not HTTP/1.1; it begins {first[:80]!r}")
    return Answer(int(rest[:3]), headers, body)


async def expect_end(reader: asyncio.StreamReader) -> None:
    """Checks that nothing follows the last answer."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            more = await reader.read()
    except ConnectionError:
        return
    except TimeoutError as error:
        raise Broken("the connection was not closed after its last answer") from error
    if more:
        raise Broken(f"more than one answer to a request: {more[:120]!r}")


async def exchange(address: Address, data: bytes, *, pieces: int = 1, seconds: float = 0.0) -> Answer:
    """Sends bytes, in `pieces` over `seconds`, then reads the one answer and the end of the connection."""
    async with connected(address) as (reader, writer):
        answer = asyncio.ensure_future(read_answer(reader))
        step = -(-len(data) // pieces)
        for start in range(0, len(data), step):
            if answer.done() or writer.is_closing():
                break  # the service has answered already
            writer.write(data[start : start + step])
            if pieces > 1:
                await asyncio.sleep(seconds / pieces)
        found = await answer
        with contextlib.suppress(OSError):  # the service may have closed the connection already
            writer.write_eof()
        await expect_end(reader)
        return found
