"""Where the service stands between start and stop."""

from dataclasses import dataclass


@dataclass(slots=True)
class Lifecycle:
    """Shared by the server, the routes and the loader; changed on the event loop only."""

    ready: bool = False
    draining: bool = False
    in_flight: int = 0  # all requests, also those without a key
    predictions_in_flight: int = 0  # those that `max_requests` limits
    start_error: str | None = None
    cut_off: bool = False  # requests were still in flight when the time to drain was over
