"""Whether the event loop may answer a request itself.

Handing an image to a thread and its answer back takes longer than decoding it. While requests come one at a time nobody
else is held up if the loop does the work; so it does, for images that take it a few milliseconds.

That requests come one at a time cannot be told from how many are in flight: while the loop computes, others wait in
their sockets and nobody knows of them. So all of a row must also come over one connection. Of several clients that are
answered in turn, each request comes over another one.
"""

# So many in a row must have come over one connection and found nobody else.
STREAK = 32
# Longer than this the loop must not be away from those who may come.
LIMIT_SECONDS = 0.005
# Requests that go by the threads after one that took longer: a file may be small and its image large. Who sends such
# files alone holds up less than one in a hundred of those who come meanwhile.
PENALTY = 200


class Solitude:
    """Counts requests of one client that find no other in flight."""

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
        """Whether the loop may take up what should last that long."""
        return self._streak > STREAK and expected_seconds < self.limit_seconds

    def took(self, seconds: float) -> None:
        """What the loop took up has lasted that long."""
        if seconds > 2 * self.limit_seconds:
            self._streak = -PENALTY
