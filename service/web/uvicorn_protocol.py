"""uvicorn's HTTP protocol, made strict: what is not HTTP gets an error like all others, and a head has limits.

uvicorn answers what is not HTTP in plain text, and waits without limit for a request's head. Here such a client gets a
problem with a request id, and a head has a timeout and a maximum size.
"""

import logging
from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.web.problems import HEAD_TIMEOUT, HEAD_TOO_LARGE, NOT_HTTP, Problem, problem_response
from service.web.request_context import identify

log = logging.getLogger("confgate")

MAX_HEAD_BYTES = 65_536
CONTINUE = b"HTTP/1.1 100 "


class _JoinedWrites:
    """A transport that writes an answer's head together with its body: one system call and one packet, not two."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.endswith(b"\r\n\r\n") and data.startswith(b"HTTP/1.1 ") and not data.startswith(CONTINUE):
            self._head = data
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Writes the head of an answer that has no body."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        self.flush()
        self._transport.close()


class StrictHttpProtocol(HttpToolsProtocol):
    """One connection. `head_seconds` is set by `strict_protocol`."""

    head_seconds = 10.0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_head = False
        self._head_bytes = 0
        self._head_timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn's own is
        super().connection_made(transport)
        self._joined = _JoinedWrites(transport)
        self.transport = self._joined  # type: ignore[assignment]  # it has all that uvicorn asks of a transport
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._forget_timer()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._joined.flush()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(HEAD_TOO_LARGE, f"the head has more than the {MAX_HEAD_BYTES} bytes that are allowed")
        # A head that arrives in one piece, as most do, costs no timer. Between two requests a stray byte stops
        # uvicorn's keep-alive timer, so a timer is needed there too.
        if self._head_timer is None and (self._in_head or self.cycle is None or self.cycle.response_complete):
            self._expect_head()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's sentence tells a client nothing
        self._refuse(
            NOT_HTTP,
            "the bytes are not a valid HTTP/1.1 request: check the request line, the headers, and that "
            "Content-Length is the length of the body",
        )

    def _expect_head(self) -> None:
        if not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.head_seconds, self._head_is_late)

    def _forget_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._in_head:
            self._refuse(HEAD_TIMEOUT, f"the head was not complete after {self.head_seconds:g} s")
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()  # nothing was begun, so there is nothing to answer

    def _refuse(self, problem: Problem, detail: str) -> None:
        """Answers in place of the application, which does not see this request, and closes the connection."""
        if self.transport.is_closing():
            return
        self._in_head = False
        self._forget_timer()
        request_id, _, added = identify(self.headers or [])
        log.info("request", extra={"request_id": request_id, "status": problem.status, "problem": detail})
        path = getattr(self, "url", b"").decode("latin-1")
        response = problem_response(problem, detail, path, request_id, headers={"Connection": "close"})
        head = [STATUS_LINE[HTTPStatus(problem.status)]]
        head += [b"%s: %s\r\n" % header for header in (*response.raw_headers, *added)]
        self.transport.write(b"".join([*head, b"\r\n", response.body]))
        self.transport.close()


def strict_protocol(head_seconds: float) -> type[StrictHttpProtocol]:
    """The protocol class for uvicorn, with its timeout set."""
    return type("ConfiguredHttpProtocol", (StrictHttpProtocol,), {"head_seconds": head_seconds})
