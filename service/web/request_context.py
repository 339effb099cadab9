"""The outermost layer: request ids, trace context, requests in flight, one log line each.

Plain ASGI, because Starlette's BaseHTTPMiddleware costs more than all the rest of a request.
"""

import random
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.logs import log_request
from service.serving.inline_execution import Solitude

REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
TRACEPARENT = re.compile(rb"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})")
# Asked for every few seconds by machines; a line each would bury the others.
QUIET_PATHS = ("/v2/health/", "/metrics")


@dataclass(slots=True)
class Lifecycle:
    """Where the service stands between start and stop."""

    ready: bool = False
    draining: bool = False
    in_flight: int = 0
    start_error: str | None = None
    solitude: Solitude = field(default_factory=Solitude)


@dataclass(slots=True)
class Context:
    """What is known about one request; routes add what its log line should tell."""

    request_id: str
    started: float
    log: dict[str, Any] = field(default_factory=dict)
    # Who asks (`service.web.keys.Caller`); None where nobody has to say.
    caller: object = None


def context_of(scope: Scope) -> Context:
    context: Context = scope["confgate"]
    return context


class Edge:
    def __init__(
        self, app: ASGIApp, lifecycle: Lifecycle, access_log: bool, direct: Mapping[tuple[str, str], ASGIApp]
    ) -> None:
        self._app = app
        self._direct = direct  # (method, path) → what answers it without asking the framework
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
        self._lifecycle.solitude.request_begins(self._lifecycle.in_flight, scope["client"])
        try:
            app = self._direct.get((scope["method"], scope["path"]), self._app)
            await app(scope, receive, send_identified)
        finally:
            self._lifecycle.in_flight -= 1
            if self._access_log and not scope["path"].startswith(QUIET_PATHS):
                _write_line(scope, context, status, traceparent)

    def _without_traceback(self, send: Send) -> Send:
        """A bundle or setting that stops the start is the operator's business: a sentence, not a traceback."""

        async def send_lifespan(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed" and self._lifecycle.start_error is not None:
                message = {**message, "message": self._lifecycle.start_error}
            await send(message)

        return send_lifespan


def identify(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str | None, list[tuple[bytes, bytes]]]:
    """The request's id, the trace it belongs to, and the headers that tell the client of both."""
    given = trace = None
    for name, value in headers:
        if name == b"x-request-id":
            given = value if REQUEST_ID.fullmatch(value) else None
        elif name == b"traceparent":
            trace = TRACEPARENT.fullmatch(value)
    # Ids need not be secret, and os.urandom would let go of the interpreter lock in the middle of every request.
    request_id = given or b"%032x" % random.getrandbits(128)
    added = [(b"x-request-id", request_id)]
    if trace is None:
        return request_id.decode(), None, added
    # The same trace, with this service as the parent of whatever comes next.
    traceparent = b"00-%s-%016x-%s" % (trace[1], random.getrandbits(64) or 1, trace[2])
    added.append((b"traceparent", traceparent))
    return request_id.decode(), traceparent.decode(), added


def _write_line(scope: Scope, context: Context, status: int, traceparent: str | None) -> None:
    fields = {
        "request_id": context.request_id,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "milliseconds": round((time.monotonic() - context.started) * 1000, 2),
        **context.log,
    }
    if traceparent is not None:
        fields["traceparent"] = traceparent
    log_request(fields)
