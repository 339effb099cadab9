"""Where the service stands between start and stop."""

from dataclasses import dataclass


@dataclass(slots=True)
class Lifecycle:
    """Shared by the server, the routes and the loader; changed on the event loop only."""

    ready: bool = False
    draining: bool = False
    in_flight: int = 0
    start_error: str | None = None
