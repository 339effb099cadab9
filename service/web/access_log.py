"""One log line for each request."""

import time
from collections.abc import Mapping
from typing import Any

from starlette.types import Scope

from service.logs import log_request

# Machines ask for these every few seconds; a line each would bury the others.
QUIET_PATHS = ("/v2/health/", "/metrics")


def write_line(
    scope: Scope, request_id: str, started: float, status: int, traceparent: str | None, details: Mapping[str, Any]
) -> None:
    """Writes a request's line; `details` is what its route adds."""
    if scope["path"].startswith(QUIET_PATHS):
        return
    fields = {
        "request_id": request_id,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "milliseconds": round((time.monotonic() - started) * 1000, 2),
        **details,
    }
    if traceparent is not None:
        fields["traceparent"] = traceparent
    log_request(fields)
