"""Who still needs a model: a version that was replaced is closed when the last request that found it has ended."""

import asyncio
from types import TracebackType


class Leases:
    """A context for each request, on the event loop; `wait_until_free` waits until none is left."""

    __slots__ = ("_free", "_held")

    def __init__(self) -> None:
        self._held = 0
        self._free: asyncio.Event | None = None

    def __enter__(self) -> None:
        self._held += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held -= 1
        if self._free is not None and not self._held:
            self._free.set()

    async def wait_until_free(self) -> None:
        """Only for a model that no further request can find."""
        if self._held:
            self._free = asyncio.Event()
            await self._free.wait()
