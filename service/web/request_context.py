"""The outermost layer: a request's id and trace, the requests in flight, and the line in the access log.

Plain ASGI, because Starlette's BaseHTTPMiddleware costs more than all the rest of a request.
"""

import asyncio
import random
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.serving.lifecycle import Lifecycle
from service.web.access_log import write_line

REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
TRACEPARENT = re.compile(rb"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})")


@dataclass(slots=True)
class Context:
    """What is known about one request; routes add what its log line should say."""

    request_id: str
    started: float
    log: dict[str, Any] = field(default_factory=dict)
    # The caller (`service.web.auth.Caller`); None on public paths.
    caller: object = None
    # Whether it is one of `Lifecycle.predictions_in_flight`.
    prediction: bool = False


def context_of(scope: Scope) -> Context:
    context: Context = scope["confgate"]
    return context


class RequestContext:
    """Gives every request its `Context`, and its id and trace back to the client."""

    def __init__(
        self, app: ASGIApp, lifecycle: Lifecycle, access_log: bool, interrupted: Callable[[Scope], ASGIApp]
    ) -> None:
        self._app = app
        self._interrupted = interrupted  # the answer to a request that the end of the service cuts off
        self._lifecycle = lifecycle
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._without_traceback(send))
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, traceparent, added = identify(scope["headers"])
        scope["confgate"] = context = Context(request_id, time.monotonic())
        status = 0

        async def send_identified(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        self._lifecycle.in_flight += 1
        try:
            await self._app(scope, receive, send_identified)
        except asyncio.CancelledError:  # only a server that stops cancels requests
            if status:
                raise
            await self._interrupted(scope)(scope, receive, send_identified)
        finally:
            self._lifecycle.in_flight -= 1
            if context.prediction:
                self._lifecycle.predictions_in_flight -= 1
            if self._access_log:
                write_line(scope, context.request_id, context.started, status, traceparent, context.log)

    def _without_traceback(self, send: Send) -> Send:
        """A bundle or setting that stops the start gets a sentence for the operator, not a traceback."""

        async def send_lifespan(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed" and self._lifecycle.start_error is not None:
                message = {**message, "message": self._lifecycle.start_error}
            await send(message)

        return send_lifespan


def identify(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str | None, list[tuple[bytes, bytes]]]:
    """The request's id, the trace it belongs to, and the headers that tell the client both."""
    given = trace = None
    for name, value in headers:
        if name == b"x-request-id":
            given = value if REQUEST_ID.fullmatch(value) else None
        elif name == b"traceparent":
            trace = TRACEPARENT.fullmatch(value)
    # Ids need not be secret, and os.urandom would release the GIL in the middle of every request.
    request_id = given or b"%032x" % random.getrandbits(128)
    added = [(b"x-request-id", request_id)]
    if trace is None:
        return request_id.decode(), None, added
    # The same trace, with this service as the parent of the next span.
    traceparent = b"00-%s-%016x-%s" % (trace[1], random.getrandbits(64) or 1, trace[2])
    added.append((b"traceparent", traceparent))
    return request_id.decode(), traceparent.decode(), added
