"""What web pages may do here: which host names a request may use, and which origins may send more than a GET.

A browser sends requests to a service on its user's own machine for any page that asks. Two checks keep pages out:

- Host. A page whose owner points its name at 127.0.0.1 (DNS rebinding) could read and send as if it were the service's
  own, but its requests carry the page's name as their Host.
- Sec-Fetch-Site and Origin. A page may POST to any address without a preflight. It cannot read the answer, but the
  request would be computed, counted, and its image perhaps captured.

Browsers write these headers, and no page can change them. Programs send neither Sec-Fetch-Site nor Origin, and pass.
"""

import re
from collections.abc import Mapping
from typing import NoReturn

from starlette.types import Scope

from service.errors import CrossSite, SettingsError, WrongHost
from service.settings import Settings

EVERYTHING = "*"
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{0,5})?")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/,]+")
DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}
SAFE_METHODS = ("GET", "HEAD")
# Spellings of allowed hosts that are remembered; each client repeats its own.
MAX_KNOWN = 64
SHOWN = 80


class Origins:
    """`address` is where clients reach the service; `only_local` says that only clients on this machine can."""

    def __init__(self, settings: Settings, address: str, *, only_local: bool) -> None:
        self._hosts = _hosts(settings.allowed_hosts, address, only_local)  # None: all
        self._origins = _origins(settings.allowed_origins or "")  # None: all
        self._known: set[bytes] = set()

    def check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """WrongHost or CrossSite, unless the request may come from where it says it comes from."""
        host = headers.get(b"host")
        if self._hosts is not None and host is not None and host not in self._known:
            self._check_host(host)
        if b"origin" in headers or b"sec-fetch-site" in headers:
            self._check_origin(scope, headers)

    def _check_host(self, host: bytes) -> None:
        assert self._hosts is not None
        name = _name(host.decode("latin-1"))
        if name not in self._hosts:
            raise WrongHost(
                f"this service does not answer to the host {_shown(host)}: ask it by a name that it knows, or add this "
                "one to the setting allowed_hosts (CONFGATE_ALLOWED_HOSTS)"
            )
        if len(self._known) < MAX_KNOWN:
            self._known.add(host)

    def _check_origin(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        if scope["method"] in SAFE_METHODS or self._origins is None:
            return
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if origin is not None and origin.lower() in self._origins:
            return
        if site == b"same-origin":
            return  # also where a proxy has changed the Host
        if site == b"cross-site" or site == b"same-site":
            _refuse(origin)
        if origin is not None:
            scheme, _, address = origin.lower().partition(b"://")
            host = headers.get(b"host", b"").lower().removesuffix(DEFAULT_PORTS.get(scheme, b""))
            if not address or address != host:
                _refuse(origin)


def _refuse(origin: bytes | None) -> NoReturn:
    whose = "another site" if origin is None else f"the origin {_shown(origin)}"
    raise CrossSite(
        f"a web page of {whose} sent this request, and only the service's own pages may: send it from a program, or "
        "add the page's origin to the setting allowed_origins (CONFGATE_ALLOWED_ORIGINS)"
    )


def _hosts(setting: str, address: str, only_local: bool) -> frozenset[str] | None:
    names: set[str] = set()
    for word in _words(setting):
        if word == EVERYTHING or (word == "auto" and not only_local):
            return None
        if word == "auto":
            names |= {*LOCAL_NAMES, _in_url(address)}
        elif (name := _name(_in_url(word))) is None:
            raise SettingsError(
                f"allowed_hosts: {word!r} is no host name: expected names such as api.example.org or [::1] with spaces "
                "or commas between them, or * for all, or auto"
            )
        else:
            names.add(name)
    if not names:
        raise SettingsError("allowed_hosts: no name is given, so nobody could ask: expected names, *, or auto")
    return frozenset(names)


def _origins(setting: str) -> frozenset[bytes] | None:
    origins: set[bytes] = set()
    for word in _words(setting):
        if word == EVERYTHING:
            return None
        origin = word.removesuffix("/")
        if not ORIGIN.fullmatch(origin) or not origin.isascii():
            raise SettingsError(
                f"allowed_origins: {word!r} is no origin: expected such as https://app.example.org or "
                "http://localhost:3000 with spaces or commas between them, or * for all"
            )
        origins.add(origin.encode())
    return frozenset(origins)


def _words(setting: str) -> list[str]:
    return [word for word in re.split(r"[\s,]+", setting.lower()) if word]


def _in_url(address: str) -> str:
    """An IPv6 address in brackets, as in a URL; everything else as it is."""
    return f"[{address}]" if address.count(":") > 1 and not address.startswith("[") else address


def _name(host: str) -> str | None:
    """The name in a Host header, without its port; None where there is none."""
    found = HOST.fullmatch(host.strip().lower())
    return None if found is None else found[1].removesuffix(".")


def _shown(value: bytes) -> str:
    return repr(value[:SHOWN].decode("latin-1"))
