"""How many connections may be open, and which one is closed when another client needs its place.

Every connection holds a descriptor, and a process may have only so many. A service without a free one could accept
nobody, not even a health probe. So connections have a limit below that of the descriptors, and at the limit a
connection that needs no answer is closed for each new one.
"""

import logging
import time
from typing import Protocol

try:
    import resource
except ImportError:  # there is no such limit on Windows
    resource = None  # type: ignore[assignment]

log = logging.getLogger("confgate")

# Descriptors for the service's own files: bundles, logs, the event loop's pipes.
RESERVED = 32
LEAST = 4
# An idle connection takes some 13 KB. This many take no more than a small model.
MOST = 4096
MAX_BACKLOG = 2048
# A client that reads takes its answer sooner than this, except over a slow network.
STALLED_SECONDS = 1.0
WARN_EVERY_SECONDS = 60.0


def connection_limit(asked: int) -> int:
    """How many connections may be open; `asked` is the setting, where 0 leaves the choice to the service."""
    descriptors = _descriptors()
    if descriptors is None:
        return asked or MOST
    # Half, because the file that an answer is read from takes a descriptor too, and because many clients may have to be
    # accepted before one connection is closed.
    if asked == 0:
        return min(MOST, max(LEAST, (descriptors - RESERVED) // 2))
    possible = max(LEAST, descriptors - RESERVED)
    if asked > possible:
        log.warning(
            "max_connections is higher than the limit of open files allows; raise that limit (ulimit -n)",
            extra={"max_connections": asked, "allowed": possible, "descriptors": descriptors},
        )
    return min(asked, possible)


def listen_backlog(limit: int) -> int:
    """How many clients may wait to be accepted: the event loop accepts all of them before it closes a connection."""
    return min(MAX_BACKLOG, max(LEAST, limit))


def _descriptors() -> int | None:
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


class Connection(Protocol):
    def give_way(self) -> None:
        """Closes this connection, because another client needs its place."""

    def close_after_answer(self) -> None:
        """Closes this connection after the last request that has been read, if its answer can still say so."""


class Connections:
    """The open connections of a server, and those that can be closed, in the order in which they would be.

    First go connections that have not sent a request yet, except the newest: their requests may be on the way. Then
    idle ones go, the longest idle first, and then those whose client does not read its answer.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.draining = False
        self._newest = max(1, limit // 8)
        self._open: set[Connection] = set()
        self._without_request: dict[Connection, None] = {}
        self._idle: dict[Connection, None] = {}
        self._stalled: dict[Connection, float] = {}  # since when
        self._next_warning = 0.0

    def drain(self) -> None:
        """From now on no connection outlives an answer. Idle ones stay open: their next request is answered too."""
        self.draining = True
        for connection in list(self._open):
            connection.close_after_answer()

    def opened(self, connection: Connection) -> bool:
        """Counts a new connection, and closes another one at the limit. False: there is no place for it yet."""
        self._open.add(connection)
        self._without_request[connection] = None
        return len(self._open) <= self.limit or self.make_room()

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._without_request.pop(connection, None)
        self._idle.pop(connection, None)
        self._stalled.pop(connection, None)

    def request_begins(self, connection: Connection) -> None:
        if connection in self._idle:  # the usual case
            del self._idle[connection]
        else:
            self._without_request.pop(connection, None)

    def answered(self, connection: Connection) -> None:
        """The client has its answer, and nothing else is to be done for it."""
        self._idle[connection] = None

    def stalls(self, connection: Connection) -> None:
        """The client does not read as fast as its answer is written."""
        self._stalled[connection] = time.monotonic()

    def flows(self, connection: Connection) -> None:
        """The client has taken what was written so far."""
        self._stalled.pop(connection, None)

    def make_room(self) -> bool:
        """Closes a connection, if there are too many and one can be closed; whether there are not too many now."""
        if len(self._open) > self.limit and (victim := self._dispensable()) is not None:
            self._warn()
            self.closed(victim)
            victim.give_way()
        return len(self._open) <= self.limit

    def _dispensable(self) -> Connection | None:
        if len(self._without_request) > self._newest:
            return next(iter(self._without_request))
        if self._idle:
            return next(iter(self._idle))
        for connection, since in self._stalled.items():
            return connection if time.monotonic() - since >= STALLED_SECONDS else None
        return None

    def _warn(self) -> None:
        now = time.monotonic()
        if now >= self._next_warning:
            self._next_warning = now + WARN_EVERY_SECONDS
            log.warning(
                "the limit of connections is reached; those without a request are closed for new ones",
                extra={"max_connections": self.limit},
            )
