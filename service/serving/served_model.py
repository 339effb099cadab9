"""Who still needs a model: a version that was replaced is closed when the last request that found it has ended."""

import asyncio


class Leases:
    """Counts requests, on the event loop; `wait_until_free` waits until none is left."""

    __slots__ = ("_free", "_held")

    def __init__(self) -> None:
        self._held = 0
        self._free: asyncio.Event | None = None

    def take(self) -> None:
        self._held += 1

    def give_back(self) -> None:
        self._held -= 1
        if self._free is not None and not self._held:
            self._free.set()

    async def wait_until_free(self) -> None:
        """Only for a model that no further request can find."""
        if self._held:
            self._free = asyncio.Event()
            await self._free.wait()
