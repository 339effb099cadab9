"""Lets nobody past without a key, whatever route they ask for: what is public is listed here, the rest is not.

Plain ASGI and inside `service.web.request_context`, so that also a refusal has its request id and its line in the log.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Unauthorised
from service.serving.metrics import Metrics
from service.web.keys import Gatekeeper
from service.web.problems import error_response
from service.web.request_context import context_of

# Orchestrators, Prometheus, and what explains how to send a key.
PUBLIC_PATHS = frozenset({"/metrics", "/docs", "/redoc", "/openapi.json", "/v2/health/live", "/v2/health/ready"})
PUBLIC_FILES = "/docs/assets/"


class Guard:
    def __init__(self, app: ASGIApp, gatekeeper: Gatekeeper, metrics: Metrics) -> None:
        self._app = app
        self._gatekeeper = gatekeeper
        self._refused = metrics.refused_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS or scope["path"].startswith(PUBLIC_FILES):
            await self._app(scope, receive, send)
            return
        context = context_of(scope)
        try:
            context.caller = caller = self._gatekeeper.identify(scope)
        except Unauthorised as error:
            self._refused.inc()
            context.log["problem"] = error.detail
            await error_response(error, scope["path"], context.request_id)(scope, receive, send)
            return
        context.log["caller"] = caller.name
        await self._app(scope, receive, send)
