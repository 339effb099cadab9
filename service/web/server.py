"""uvicorn, with a drain: on SIGTERM requests in flight are answered, new ones get 503, then the process ends.

Requests have until a little before `drain_seconds`; what is left of it is for closing everything. Who is not answered
by then gets 503 too.
"""

import gc
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from service.serving.lifecycle import Lifecycle
from service.settings import Settings
from service.web.app import Application
from service.web.connections import Connections, connection_limit, listen_backlog
from service.web.uvicorn_protocol import strict_protocol

SWITCH_SECONDS = 0.0005
# Requests in flight create and free objects by the thousand. With Python's default of 700 the garbage collector would
# run many times a second, over everything that was loaded at the start. With this many it runs now and then, at the
# cost of a few megabytes.
COLLECT_AFTER = 20_000
# The kernel would take megabytes of an answer that a client does not read, and count them as memory of the service.
UNSENT_BYTES = 131_072
# A service that should not drain at all still needs some time to close everything.
LEAST_DRAIN_SECONDS = 1.0
CLOSING_SECONDS = 2.0
CUT_OFF_SECONDS = 0.25


def _wait_for_ever(_deadline: float) -> None:
    """Where the process has other things to do when the server has ended, as in tests."""


class DrainingServer(uvicorn.Server):
    """Serves one application until SIGTERM or SIGINT."""

    def __init__(
        self, app: Application, settings: Settings, end_process_by: Callable[[float], None] = _wait_for_ever
    ) -> None:
        self._connections = connections = Connections(connection_limit(settings.max_connections))
        timeouts = settings.body_timeout_ms / 1000, settings.write_timeout_ms / 1000
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                lifespan="on",
                http=strict_protocol(*timeouts, connections),
                backlog=listen_backlog(connections.limit),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                # What X-Forwarded-For says must not make a remote client look local.
                proxy_headers=False,
                timeout_keep_alive=settings.keep_alive_seconds,
                timeout_graceful_shutdown=1,
            )
        )
        # A finished batch waits for the GIL before the next one can start. By default Python lets a thread hold it for
        # 5 ms, in which several images could be computed.
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])
        self._lifecycle: Lifecycle = app.state.lifecycle
        self._end_process_by = end_process_by
        self._drain_seconds = settings.drain_seconds
        self._drained_by = 0.0
        self._cuts_off = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # Connections inherit it from the sockets that listen.
        for listener in (one for server in self.servers for one in server.sockets):
            if hasattr(socket, "TCP_NOTSENT_LOWAT") and listener.family in (socket.AF_INET, socket.AF_INET6):
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        now, limit = time.monotonic(), max(self._drain_seconds, LEAST_DRAIN_SECONDS)
        self._end_process_by(now + limit)
        if self._lifecycle.draining or not self._lifecycle.ready:
            super().handle_exit(sig, frame)
            return
        self._lifecycle.draining = True
        self._connections.drain()
        if sig == signal.SIGINT:  # a person at the keyboard has decided already
            self._drained_by = now
            return
        self._drained_by = now + min(self._drain_seconds, limit - min(CLOSING_SECONDS, limit / 2))
        self._cuts_off = True

    async def on_tick(self, counter: int) -> bool:
        if self._lifecycle.draining and (self._lifecycle.in_flight == 0 or time.monotonic() >= self._drained_by):
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._cuts_off and self._lifecycle.in_flight:
            self._lifecycle.cut_off = True
            for task in list(self.server_state.tasks):
                task.cancel()  # `RequestContext` answers
            # What uvicorn waits for these answers to be read; there is little time left.
            self.config.timeout_graceful_shutdown = CUT_OFF_SECONDS  # type: ignore[assignment]  # asyncio takes it
        await super().shutdown(sockets)
