"""API keys: who may ask, and who may change things.

A key is 256 random bits, shown once by `confgate keys new`; what is stored is its line NAME:ROLE:SHA256. A plain
SHA-256 is enough for that: there is no guessing 256 bits, so nothing is gained by a slow hash in every request.
Routes ask for `require_caller` or `require_admin`; `service.web.auth` has looked at the key by then.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from starlette.requests import Request
from starlette.types import Scope

from service.errors import Forbidden, SettingsError, Unauthorised
from service.settings import Settings
from service.web.request_context import context_of

Role = Literal["client", "admin"]

KEY_PREFIX = "cg_"
LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.@-]{0,63}):(client|admin):([0-9a-f]{64})")
# Longer ones are not hashed: no key is.
MAX_KEY_BYTES = 256
LOOPBACK = frozenset({"127.0.0.1", "::1"})
HOW_TO_SEND = "send one as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"
HOW_TO_MAKE = "make one with `confgate keys new NAME` and put its line into the file that CONFGATE_API_KEYS_FILE names"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request; the name is in the log, the key is nowhere."""

    name: str
    admin: bool = False
    anonymous: bool = False


ANONYMOUS = Caller("anonymous", anonymous=True)


def new_key(name: str, role: Role) -> tuple[str, str]:
    """A fresh key, and the line to store for it."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    line = f"{name}:{role}:{_digest(key.encode()).hex()}"
    if LINE.fullmatch(line) is None or name == ANONYMOUS.name:
        raise SettingsError(
            f"{name!r} cannot be the name of a key: expected 1 to 64 letters, digits and . _ @ -, "
            f"beginning with a letter or digit, and not {ANONYMOUS.name!r}"
        )
    return key, line


class KeyRing:
    """The keys of one service, by the digest of each."""

    def __init__(self, lines: Iterable[tuple[str, str]] = ()) -> None:
        self._callers: dict[bytes, Caller] = {}
        places: dict[str, str] = {}
        for line, place in lines:
            found = LINE.fullmatch(line)
            if found is None or found[1] == ANONYMOUS.name:
                # Not shown whole: it may be a key that somebody has put where its line belongs.
                raise SettingsError(
                    f"{place}: {line[:6] + '…'!r} is no line of a key: expected NAME:ROLE:SHA256 with the role client "
                    "or admin, as `confgate keys new NAME` prints it"
                )
            name, role, digest = found[1], found[2], bytes.fromhex(found[3])
            if name in places:
                raise SettingsError(f"{place}: the name {name!r} is also that of {places[name]}; names must differ")
            if digest in self._callers:
                raise SettingsError(f"{place}: {name!r} has the same key as {self._callers[digest].name!r}")
            places[name] = place
            self._callers[digest] = Caller(name, admin=role == "admin")

    @property
    def callers(self) -> list[Caller]:
        return list(self._callers.values())

    def find(self, key: bytes) -> Caller | None:
        """Whose key this is. Every digest is compared, each in constant time: how long it takes tells nothing."""
        if len(key) > MAX_KEY_BYTES:
            return None
        digest, found = _digest(key), None
        for known, caller in self._callers.items():
            if hmac.compare_digest(known, digest):
                found = caller
        return found


def read_keys(settings: Settings) -> KeyRing:
    """The keys that the settings name, from the variable and from the file."""
    lines = [(word, "api_keys") for word in re.split(r"[\s,]+", settings.api_keys or "") if word]
    if settings.api_keys_file is not None:
        lines += _lines_of(settings.api_keys_file)
    return KeyRing(lines)


def _lines_of(file: Path) -> list[tuple[str, str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"api_keys_file: {str(file)!r} is not allowed: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"api_keys_file: {str(file)!r} is not allowed: it is no text") from error
    numbered = ((line.strip(), f"{file} line {number}") for number, line in enumerate(text.splitlines(), 1))
    return [(line, place) for line, place in numbered if line and not line.startswith("#")]


def add_line(file: Path, line: str) -> None:
    """Appends a key's line to a file of keys, unless the two do not go together."""
    there = file.exists()
    KeyRing([*(_lines_of(file) if there else []), (line, "the new key")])
    try:
        text = file.read_text(encoding="utf-8") if there else ""
        with file.open("a", encoding="utf-8") as opened:
            opened.write(("\n" if text and not text.endswith("\n") else "") + line + "\n")
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}") from error


class Gatekeeper:
    """Decides who a request comes from, and whether it may come without a key.

    With `allow_anonymous` auto a request needs no key if there is no client key, it can only come from this machine
    (the service listens on loopback, or its published port does), and it says of itself that no proxy passed it on.
    Headers such as X-Forwarded-For can only take this right away: anybody may write anything into them.
    """

    def __init__(self, settings: Settings) -> None:
        self.keys = read_keys(settings)
        callers = self.keys.callers
        self.has_admin = any(caller.admin for caller in callers)
        self._everybody = settings.allow_anonymous == "true"
        # A client key would protect nothing if those without one were let in beside it.
        automatic = settings.allow_anonymous == "auto" and all(caller.admin for caller in callers)
        published = settings.published_on
        self._published_locally = automatic and published is not None and is_loopback(published)
        self._listens_locally = automatic and published is None and is_loopback(settings.host)
        if not (callers or self._everybody or self._published_locally or self._listens_locally):
            raise SettingsError(_nobody_could_ask(settings))

    def identify(self, scope: Scope) -> Caller:
        """The caller of a request; Unauthorised where it is not to be answered."""
        given: bytes | None = None
        bearer: bytes | None = None
        forwarded = False
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                given = value.strip()
            elif name == b"authorization":
                scheme, _, rest = value.partition(b" ")
                # Other schemes are the business of a proxy in front.
                bearer = rest.strip() if scheme.lower() == b"bearer" else None
            elif name == b"x-forwarded-for" or name == b"forwarded" or name == b"x-real-ip":
                forwarded = True
        key = bearer if given is None else given
        if key is None:
            if self._everybody or (not forwarded and self._is_near(scope)):
                return ANONYMOUS
            raise Unauthorised(f"this service needs an API key: {HOW_TO_SEND}")
        caller = self.keys.find(key)
        if caller is None:
            # Also where none is needed: whoever sends a key believes to be somebody.
            raise Unauthorised(
                "the API key is not known here: check that it was copied whole, and has not been revoked"
            )
        return caller

    def _is_near(self, scope: Scope) -> bool:
        if self._published_locally:
            return True
        peer = scope.get("client")
        return self._listens_locally and peer is not None and (peer[0] in LOOPBACK or is_loopback(peer[0]))


def require_caller(request: Request) -> Caller:
    """FastAPI dependency: whoever may ask at all."""
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


def _nobody_could_ask(settings: Settings) -> str:
    if settings.allow_anonymous == "false":
        return f"allow_anonymous is false, and there is no key: nobody could ask. Give keys: {HOW_TO_MAKE}"
    where = "host" if settings.published_on is None else "published_on"
    return (
        f"{where}: {getattr(settings, where)!r} can be reached from other machines, and there is no API key. "
        f"Either {HOW_TO_MAKE}, or set CONFGATE_ALLOW_ANONYMOUS=true if everybody who reaches it may ask, "
        "or listen on 127.0.0.1"
    )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
