"""Who a request comes from, and whether it may come without a key. Only the paths listed here are public.

Whether its host and its origin are allowed is asked here too (`service.web.origins`): headers are looked at once.
Plain ASGI and inside `RequestContext`, so that a refusal has its request id and its line in the log too.
"""

import ipaddress

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import CrossSite, Forbidden, SettingsError, Unauthorised, WrongHost
from service.serving.metrics import Metrics
from service.settings import Settings
from service.web.keys import ANONYMOUS, Caller, read_keys
from service.web.origins import Origins
from service.web.problems import error_response
from service.web.request_context import context_of

# For orchestrators and Prometheus, which ask by a container's or a pod's address: any host is allowed.
PROBED_PATHS = frozenset({"/metrics", "/v2/health/live", "/v2/health/ready"})
# And what explains how to send a key.
PUBLIC_PATHS = PROBED_PATHS | {"/docs", "/redoc", "/openapi.json"}
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
        address = settings.host if published is None else published
        self.origins = Origins(settings, address, only_local=is_loopback(address))
        if not (callers or self._everybody or self._published_locally or self._listens_locally):
            raise SettingsError(_no_caller_possible(settings))

    def identify(self, scope: Scope) -> Caller:
        """The caller of a request; or Unauthorised, WrongHost or CrossSite."""
        headers = dict(scope["headers"])
        self.origins.check(scope, headers)
        key = headers.get(b"x-api-key")
        if key is None and (authorization := headers.get(b"authorization")) is not None:
            scheme, _, rest = authorization.partition(b" ")
            # Other schemes are for a proxy in front.
            key = rest if scheme.lower() == b"bearer" else None
        if key is None:
            forwarded = b"x-forwarded-for" in headers or b"forwarded" in headers or b"x-real-ip" in headers
            if self._everybody or (not forwarded and self._is_local(scope)):
                return ANONYMOUS
            raise Unauthorised(f"this service needs an API key: {HOW_TO_SEND}")
        caller = self.keys.find(key.strip())
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
    """Identifies the caller of every request that is not public, or answers 401, 403 or 421."""

    def __init__(self, app: ASGIApp, gatekeeper: Gatekeeper, metrics: Metrics) -> None:
        self._app = app
        self._gatekeeper = gatekeeper
        self._refused = metrics.refused_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context, path = context_of(scope), scope["path"]
        try:
            if path in PUBLIC_PATHS or path.startswith(PUBLIC_FILES):
                if path not in PROBED_PATHS:
                    self._gatekeeper.origins.check(scope, dict(scope["headers"]))
            else:
                context.caller = caller = self._gatekeeper.identify(scope)
                context.log["caller"] = caller.name
        except (Unauthorised, WrongHost, CrossSite) as error:
            if isinstance(error, Unauthorised):
                self._refused.inc()
            context.log["problem"] = error.detail
            await error_response(error, path, context.request_id)(scope, receive, send)
            return
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
