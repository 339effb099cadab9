"""Notices that a client hung up while its answer is being computed, so that its images can be dropped."""

import asyncio
from types import TracebackType

from starlette.types import Receive

from service.errors import ClientGone

# Most answers are sooner than this, also of a service that is busy; watching those would cost a task each, and save
# one image at most.
PATIENCE_SECONDS = 0.2


class HangUpWatch:
    """A context that ends with ClientGone when the client disconnects before it is left.

    The body must have been read: from then on the only thing left to receive is the disconnect.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._owner = asyncio.current_task(loop)
        self._watch: asyncio.Task[None] | None = None
        self._timer = loop.call_later(PATIENCE_SECONDS, self._start)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
        if self._gone and isinstance(error, asyncio.CancelledError):
            assert self._owner is not None
            self._owner.uncancel()
            raise ClientGone from error

    def _start(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect" and self._owner is not None:
            self._gone = True
            self._owner.cancel()
