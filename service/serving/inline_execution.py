"""Whether the event loop may decode and compute a request itself.

Handing an image to a thread and its answer back takes longer than decoding a small one. While requests come one at a
time, no other request waits if the event loop does the work itself; so it does, for images that take it a few
milliseconds.

The number of requests in flight cannot tell whether requests come one at a time: while the event loop computes, others
wait unseen in their sockets. So all requests of a streak must also come over one connection. When several clients are
answered in turn, each request comes over another one.
"""

# A streak begins after this many requests over one connection, each the only one in flight.
STREAK = 32
# The event loop must not be busy with one request for longer than this.
LIMIT_SECONDS = 0.005
# This many requests go through the threads after one that took too long: a small file may hold a large image. A client
# that sends only such files delays less than one in a hundred of the requests that arrive meanwhile.
PENALTY = 200


class InlineExecution:
    """Counts consecutive requests of one connection that find no other in flight."""

    __slots__ = ("_client", "_streak", "limit_seconds")

    def __init__(self) -> None:
        self._streak = 0
        self._client: object = None
        self.limit_seconds = LIMIT_SECONDS

    def request_begins(self, in_flight: int, client: object) -> None:
        """`client` is the other end of the connection, address and port; None where it has none."""
        if in_flight == 1 and client is not None and client == self._client:
            self._streak += 1
        elif self._streak > 0:
            self._streak = 0
        self._client = client

    def allows(self, expected_seconds: float) -> bool:
        """Whether the event loop may do work that should take that long."""
        return self._streak > STREAK and expected_seconds < self.limit_seconds

    def took(self, seconds: float) -> None:
        """Reports how long the event loop was busy."""
        if seconds > 2 * self.limit_seconds:
            self._streak = -PENALTY
