"""GET /metrics: one text for everybody who asks within `metrics_cache_ms`.

Writing that text takes milliseconds of Python, in which no other thread can hold the GIL. It is written in a thread, by
one request at a time, so that many scrapes cost about as much as one.
"""

import asyncio
import math
import time

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from starlette.responses import Response


class Scraper:
    def __init__(self, registry: CollectorRegistry, cache_ms: int) -> None:
        self._registry = registry
        self._cache_seconds = cache_ms / 1000
        self._writing = asyncio.Lock()
        self._text = b""
        self._begun = -math.inf  # when the writing of that text began

    async def scrape(self) -> Response:
        """Everything Prometheus is told, in its text format."""
        asked = time.monotonic()
        async with self._writing:
            # A text that was begun while this request waited is as good as its own.
            if self._begun < asked - self._cache_seconds:
                begun = time.monotonic()
                self._text = await asyncio.to_thread(generate_latest, self._registry)
                self._begun = begun
        return Response(self._text, media_type=CONTENT_TYPE_PLAIN_0_0_4)
