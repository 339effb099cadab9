"""Asks a server on this machine for JSON."""

import json
import urllib.request
from typing import Any

PATIENCE_SECONDS = 10

# Not through a proxy that the environment may name for the world outside.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get_json(url: str) -> Any:
    with _DIRECT.open(url, timeout=PATIENCE_SECONDS) as response:
        return json.load(response)
