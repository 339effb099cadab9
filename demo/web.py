"""JSON from a server on this machine."""

import json
import urllib.request
from typing import Any

TIMEOUT_SECONDS = 10

# Without the proxy that the environment may set for other hosts.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get_json(url: str) -> Any:
    """The parsed body of a GET request."""
    with _DIRECT.open(url, timeout=TIMEOUT_SECONDS) as response:
        return json.load(response)
