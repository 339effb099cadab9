"""Who a request comes from, and whether it may come without a key. Only the paths listed here are public.

Plain ASGI and inside `RequestContext`, so that a refusal has its request id and its line in the log too.
"""

import ipaddress

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Forbidden, SettingsError, Unauthorised
from service.serving.metrics import Metrics
from service.settings import Settings
from service.web.keys import ANONYMOUS, Caller, read_keys
from service.web.problems import error_response
from service.web.request_context import context_of

# For orchestrators and Prometheus, and what explains how to send a key.
PUBLIC_PATHS = frozenset({"/metrics", "/docs", "/redoc", "/openapi.json", "/v2/health/live", "/v2/health/ready"})
PUBLIC_FILES = "/docs/assets/"
LOOPBACK = frozenset({"127.0.0.1", "::1"})
HOW_TO_SEND = "send one as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"
HOW_TO_MAKE = "make one with `confgate keys new NAME` and put its line into the file that CONFGATE_API_KEYS_FILE names"


class Gatekeeper:
    """Decides who a request comes from, and whether it may come without a key.

    With `allow_anonymous` auto a request needs no key if there is no client key, it can only come from this machine
    (the service listens on loopback, or its published port does), and no proxy has forwarded it. Headers such as
    X-Forwarded-For can only take this right away: a client may write anything into them.
    """

    def __init__(self, settings: Settings) -> None:
        self.keys = read_keys(settings)
        callers = self.keys.callers
        self.has_admin = any(caller.admin for caller in callers)
        self._everybody = settings.allow_anonymous == "true"
        # A client key would protect nothing if requests without one were answered too.
        automatic = settings.allow_anonymous == "auto" and all(caller.admin for caller in callers)
        published = settings.published_on
        self._published_locally = automatic and published is not None and is_loopback(published)
        self._listens_locally = automatic and published is None and is_loopback(settings.host)
        if not (callers or self._everybody or self._published_locally or self._listens_locally):
            raise SettingsError(_no_caller_possible(settings))

    def identify(self, scope: Scope) -> Caller:
        """The caller of a request, or Unauthorised."""
        given: bytes | None = None
        bearer: bytes | None = None
        forwarded = False
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                given = value.strip()
            elif name == b"authorization":
                scheme, _, rest = value.partition(b" ")
                # Other schemes are for a proxy in front.
                bearer = rest.strip() if scheme.lower() == b"bearer" else None
            elif name == b"x-forwarded-for" or name == b"forwarded" or name == b"x-real-ip":
                forwarded = True
        key = bearer if given is None else given
        if key is None:
            if self._everybody or (not forwarded and self._is_local(scope)):
                return ANONYMOUS
            raise Unauthorised(f"this service needs an API key: {HOW_TO_SEND}")
        caller = self.keys.find(key)
        if caller is None:
            # Also where no key is needed: a client that sends a key expects to be known by it.
            raise Unauthorised(
                "the API key is not known here: check that it was copied whole, and has not been revoked"
            )
        return caller

    def _is_local(self, scope: Scope) -> bool:
        if self._published_locally:
            return True
        peer = scope.get("client")
        return self._listens_locally and peer is not None and (peer[0] in LOOPBACK or is_loopback(peer[0]))


class Auth:
    """Identifies the caller of every request that is not public, or answers 401."""

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


def require_caller(request: Request) -> Caller:
    """FastAPI dependency: any caller that may send requests."""
    caller = context_of(request.scope).caller
    if not isinstance(caller, Caller):
        raise Unauthorised(f"this service needs an API key: {HOW_TO_SEND}")
    return caller


def require_admin(request: Request) -> Caller:
    """FastAPI dependency: an admin key, also on loopback, where any page in a browser can send requests."""
    caller = require_caller(request)
    if caller.admin:
        return caller
    gatekeeper: Gatekeeper = request.app.state.gatekeeper
    if not gatekeeper.has_admin:
        raise Forbidden(f"this needs an admin key, and this service has none: {HOW_TO_MAKE} (--admin), then restart")
    if caller.anonymous:
        raise Unauthorised(f"this needs an admin key: {HOW_TO_SEND}")
    raise Forbidden(f"the key {caller.name!r} is not an admin key; this needs one")


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from the same machine."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _no_caller_possible(settings: Settings) -> str:
    if settings.allow_anonymous == "false":
        return f"allow_anonymous is false, and there is no key: nobody could ask. Give keys: {HOW_TO_MAKE}"
    where = "host" if settings.published_on is None else "published_on"
    return (
        f"{where}: {getattr(settings, where)!r} can be reached from other machines, and there is no API key. "
        f"Either {HOW_TO_MAKE}, or set CONFGATE_ALLOW_ANONYMOUS=true if everybody who reaches it may ask, "
        "or listen on 127.0.0.1"
    )
