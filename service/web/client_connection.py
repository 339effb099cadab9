"""One client's connection: its place among the others, how fast it reads, and whether it is still there.

uvicorn waits without limit for a client to read its answer, and closes the connection of a client that has sent all it
wanted to send (that shut down its side of the connection) before it is answered.
"""

import logging
from asyncio import TimerHandle, Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.web.connections import Connections
from service.web.transport import CONTINUE, AnswerTransport

log = logging.getLogger("confgate")

# A client that takes this many bytes of its answer within the write timeout is slow, and not stalled.
SLOW_BYTES = 65_536
# When to look whether a client that closed one side of its connection has closed the other one too: soon, then less
# and less often.
FIRST_LOOK_SECONDS = 0.01
LOOK_SECONDS = 1.0
# How long a client may go on sending a request that a stopping service has answered already.
LINGER_SECONDS = 2.0


class ClientConnection(HttpToolsProtocol):
    """uvicorn's protocol with a limit of connections, a timeout for writes, and half-closed connections."""

    write_seconds = 10.0
    all_connections: Connections

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_head = False
        self._in_body = False
        self._has_place = True
        # uvicorn's `cycle` is the last request that was read, which may be waiting for the one that is being answered.
        self._answering: RequestResponseCycle | None = None
        self._unread = 0
        self._write_timer: TimerHandle | None = None
        self._reset_timer: TimerHandle | None = None
        self._linger_timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn's own is
        super().connection_made(transport)
        self._answers = AnswerTransport(transport)
        self.transport = self._answers  # type: ignore[assignment]  # it has all that uvicorn asks of a transport
        self._has_place = self.all_connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.all_connections.closed(self)
        super().connection_lost(exc)
        self._disconnected()
        for timer in (self._write_timer, self._reset_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()

    def give_way(self) -> None:
        """Closes this connection, because another client needs its place."""
        if self.flow.write_paused:
            self._answers.discard()
        else:
            self.transport.close()

    def close_after_answer(self) -> None:
        """Closes this connection after the last request that has been read, if its answer can still say so."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False
            self._answers.lingers = self._in_body

    def _disconnected(self) -> None:
        """Tells the application that it cannot answer any more."""
        for cycle in (self._answering, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def on_response_complete(self) -> None:
        self._answers.flush()
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
        super().on_response_complete()
        if self._answers.lingers and self.transport.is_closing():
            self._linger_timer = self.loop.call_later(LINGER_SECONDS, self._answers.end_lingering)
            self.flow.resume_reading()
        self._may_be_idle()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.all_connections.stalls(self)
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.all_connections.flows(self)
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self._may_be_idle()

    def _may_be_idle(self) -> None:
        # The cycle is that of the last request: it is complete when all are.
        if self.cycle is None or not self.cycle.response_complete:
            return
        if not (self.flow.write_paused or self.transport.is_closing()):
            self.all_connections.answered(self)

    def _expect_reading(self) -> None:
        self._unread = self._answers.bytes_on_the_way()
        self._write_timer = self.loop.call_later(self.write_seconds, self._reading_is_late)

    def _reading_is_late(self) -> None:
        if self._unread - self._answers.bytes_on_the_way() >= SLOW_BYTES:
            self._expect_reading()
            return
        why = f"the client did not read its answer for {self.write_seconds:g} s"
        log.info("connection closed", extra={"problem": why})
        self._answers.discard()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's returns nothing, which means False
        """The client sends no more. True keeps the connection open: it may wait for the answer to its request."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or self._in_head or self._in_body:
            return False
        cycle.keep_alive = False
        # A client that closed the connection looks the same up to here. An interim answer tells them apart: HTTP/1.1
        # clients skip it, and where nobody reads any more a reset comes back.
        if not (cycle.response_started or self.pipeline) and cycle.scope["http_version"] == "1.1":
            self.transport.write(CONTINUE)
        self._look_for_reset(FIRST_LOOK_SECONDS)
        return True

    def _look_for_reset(self, next_look: float) -> None:
        if self._answers.is_reset():
            self.transport.abort()
            return
        later = min(2 * next_look, LOOK_SECONDS)
        self._reset_timer = self.loop.call_later(next_look, self._look_for_reset, later)
