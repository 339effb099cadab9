"""API keys and the file that holds their lines.

A key is 256 random bits, shown once by `confgate keys new`; what is stored is its line NAME:ROLE:SHA256. A plain
SHA-256 is enough for that: 256 random bits cannot be guessed, so a slow hash in every request would gain nothing.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from service.errors import SettingsError
from service.settings import Settings

Role = Literal["client", "admin"]

KEY_PREFIX = "cg_"
LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.@-]{0,63}):(client|admin):([0-9a-f]{64})")
# No key is longer, so longer ones are not hashed.
MAX_KEY_BYTES = 256


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. The name is in the log; the key is never kept."""

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
                # Not shown whole: it may be a key, put where its line belongs.
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


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
