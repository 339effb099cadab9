"""uvicorn's HTTP protocol, made strict: what is not HTTP gets an error like all others, and a head has limits.

uvicorn answers what is not HTTP in plain text, waits without limit for a request's head, takes trailer fields for
headers, and loses the body of a request that offers an upgrade. Here:

- what is not HTTP gets a problem with a request id;
- a head has a timeout and a maximum size, and so has the number of requests that are sent ahead;
- trailer fields, which may follow a chunked body, are refused;
- an upgrade is not taken, and the request is answered as any other.
"""

import logging
from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.web.client_connection import ClientConnection
from service.web.connections import Connections
from service.web.problems import (
    HEAD_TIMEOUT,
    HEAD_TOO_LARGE,
    NOT_HTTP,
    TOO_MANY_CONNECTIONS,
    Problem,
    problem_response,
)
from service.web.request_context import identify

log = logging.getLogger("confgate")

MAX_HEAD_BYTES = 65_536
# Requests that wait on one connection for the answer to the one before. With more the connection is closed after them.
MAX_PIPELINED = 64
# Answered also where there are too many connections: to restart a busy service would make things worse.
HEALTH = b"/v2/health/"
# Headers, and words of the header Connection, that only concern an upgrade (RFC 9110, 7.8; RFC 7540, 3.2).
UPGRADE_FIELDS = frozenset({b"upgrade", b"http2-settings"})
NOT_HTTP_DETAIL = (
    "the bytes are not a valid HTTP/1.1 request: check the request line, the headers, and that Content-Length is the "
    "length of the body"
)
TRAILER_DETAIL = "fields after a chunked body (trailers) are not served: send them as headers, before the body"


class _Refused(Exception):  # noqa: N818 - it says what happens to the request
    """Raised in a callback of the parser, which ends it, or made by the protocol: the answer to the request."""

    def __init__(self, problem: Problem, detail: str) -> None:
        super().__init__(detail)
        self.problem = problem
        self.detail = detail


class _SentAhead(Exception):  # noqa: N818
    """Raised in a callback of the parser, which ends it: no further request is read from this connection."""


class _NoParser:
    """Takes the place of the parser on a connection from which no further request is read."""

    def feed_data(self, data: bytes) -> None:
        """Drops what a client sends until it has its answers."""


class StrictHttpProtocol(ClientConnection):
    """One connection. What all have in common is set by `strict_protocol`."""

    head_seconds = 10.0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._head_timer: TimerHandle | None = None
        self._message_ended = False  # in this read
        self._upgrade_offered = False
        # Bytes after the head of a chunk, until its data begin: -1 in the read with that head, None elsewhere.
        self._after_chunk_head: int | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn's own is
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget_timer()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._message_ended = False
        try:
            unread: bytes | None = data
            while unread is not None:
                unread = self._feed(unread)
            if self._after_chunk_head is not None:
                self._count_after_chunk_head(len(data))
            # In a read in which another request ended, most of the bytes may be of that one.
            if self._in_head and not self._message_ended:
                self._count_head(len(data))
        except _Refused as refused:
            self._refuse(refused)
        # A head that arrives in one piece, as most do, costs no timer. Between two requests a stray byte stops
        # uvicorn's keep-alive timer, so a timer is needed there too.
        if self._head_timer is None and (self._in_head or self.cycle is None or self.cycle.response_complete):
            self._expect_head()

    def _feed(self, data: bytes) -> bytes | None:
        """Has bytes parsed, and returns those that must be parsed again."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The parser would take all that follows this head for another protocol.
            head = self._head_without_upgrade()
            self._upgrade_offered = False
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            return head + data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            raised = error.__context__  # by a callback
            if isinstance(raised, _Refused):
                raise raised from None
            if not isinstance(raised, _SentAhead):
                self.logger.warning("Invalid HTTP request received.")
                raise _Refused(NOT_HTTP, NOT_HTTP_DETAIL) from error
            self.parser = _NoParser()  # type: ignore[assignment]  # nothing else is asked of it
        return None

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                words = [word.strip() for word in value.split(b",")]
                kept = b", ".join(word for word in words if word.lower() not in UPGRADE_FIELDS)
                lines.append(b"connection: " + kept)
            elif name not in UPGRADE_FIELDS:
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Refused(NOT_HTTP, NOT_HTTP_DETAIL)
            self._upgrade_offered = True  # the parser stops after this, and `_feed` goes on
            return
        self._in_head = False
        self._forget_timer()
        if len(self.pipeline) >= MAX_PIPELINED:
            self.cycle.keep_alive = False
            raise _SentAhead
        self.all_connections.request_begins(self)
        if not self._has_place:
            self._has_place = self.all_connections.make_room()
            if not self._has_place and not self.url.startswith(HEALTH):
                detail = f"{self.all_connections.limit} connections are in use, and more are not allowed; try again"
                raise _Refused(TOO_MANY_CONNECTIONS, detail)
        super().on_headers_complete()
        self._in_body = True
        if not self.pipeline:
            self._answering = self.cycle
        # The scope keeps its list. Fields that follow the body go into this one, and never become headers.
        self.headers = []
        if not self._has_place:
            self.cycle.keep_alive = False
        if self.all_connections.draining:
            self.close_after_answer()

    # These two are uvicorn's without its question about an upgrade.

    def on_body(self, body: bytes) -> None:
        self._after_chunk_head = None
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self._upgrade_offered:
            return
        self._in_body = False
        self._message_ended = True
        if self._answers.lingers:
            self._answers.end_lingering()
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def on_chunk_header(self) -> None:
        self._after_chunk_head = -1

    def on_chunk_complete(self) -> None:
        self._after_chunk_head = None
        if self.headers:
            raise _Refused(NOT_HTTP, TRAILER_DETAIL)

    def _count_head(self, received: int) -> None:
        self._head_bytes += received
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _Refused(HEAD_TOO_LARGE, f"the head has more than the {MAX_HEAD_BYTES} bytes that are allowed")

    def _count_after_chunk_head(self, received: int) -> None:
        """Finds trailer fields that the parser has not reported: it gathers one, however long, until the next."""
        assert self._after_chunk_head is not None
        if self._after_chunk_head < 0:
            self._after_chunk_head = 0  # the first bytes of this read came before
            return
        # No byte of data has come, so this was the head of the last chunk, which an empty line should follow.
        self._after_chunk_head += received
        if self._after_chunk_head > 1:
            raise _Refused(NOT_HTTP, TRAILER_DETAIL)

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
            self._refuse(_Refused(HEAD_TIMEOUT, f"the head was not complete after {self.head_seconds:g} s"))
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()  # nothing was begun, so there is nothing to answer

    def _refuse(self, refused: _Refused) -> None:
        """Answers in place of the application, for which the client has disconnected, and closes the connection."""
        if self.transport.is_closing():
            return
        self._disconnected()
        answering = self._answering
        if answering is not None and answering.response_started and (self._in_body or not answering.response_complete):
            self.transport.close()  # a second answer would be taken for a part of the first one
            return
        self._in_head = False
        self._forget_timer()
        self._answers.end_lingering()  # the rest of this connection is not read
        problem, headers = refused.problem, {"Connection": "close"}
        if problem is TOO_MANY_CONNECTIONS:
            headers["Retry-After"] = "1"
        request_id, _, added = identify(self.scope["headers"] if self.scope is not None else [])
        log.info("request", extra={"request_id": request_id, "status": problem.status, "problem": refused.detail})
        path = getattr(self, "url", b"").decode("latin-1")
        response = problem_response(problem, refused.detail, path, request_id, headers=headers)
        head = [STATUS_LINE[HTTPStatus(problem.status)]]
        head += [b"%s: %s\r\n" % header for header in (*response.raw_headers, *added)]
        self.transport.write(b"".join([*head, b"\r\n", response.body]))
        self.transport.close()


def strict_protocol(
    head_seconds: float, write_seconds: float, all_connections: Connections
) -> type[StrictHttpProtocol]:
    """The protocol class for uvicorn, with its timeouts and the connections of its server set."""
    shared = {"head_seconds": head_seconds, "write_seconds": write_seconds, "all_connections": all_connections}
    return type("ConfiguredHttpProtocol", (StrictHttpProtocol,), shared)
