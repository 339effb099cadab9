"""How long a request may take, and whether its client is still there: one timer for both.

Most requests are answered before that timer first rings, so all they pay for is to set it and to take it back.
"""

import asyncio
import time
from types import TracebackType
from typing import Self

from starlette.types import Receive

from service.errors import ClientGone

# Most answers are sooner than this, also of a service that is busy; watching those for a hang-up would cost a task
# each, and save one image at most.
PATIENCE_SECONDS = 0.2
# Timers ring on whole milliseconds, and so a little early.
EARLY_SECONDS = 0.001


class Patience:
    """A context that ends with TimeoutError at its deadline, or with ClientGone when the client hangs up before it."""

    __slots__ = ("_cancelling", "_deadline", "_loop", "_owner", "_receive", "_timer", "_watch", "_why")

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline  # on the clock of time.monotonic()
        self._receive: Receive | None = None
        self._watch: asyncio.Task[None] | None = None
        self._why: type[Exception] | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        owner = asyncio.current_task(self._loop)
        assert owner is not None  # coroutines run in tasks
        self._owner, self._cancelling = owner, owner.cancelling()
        self._set_timer(self._deadline - time.monotonic())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
        # Somebody else may have cancelled the task too: then it stays cancelled.
        if self._why is not None and self._owner.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._why from error

    def body_is_read(self, receive: Receive, deadline: float) -> None:
        """Now a hang-up is all that can still be received, and there is time until `deadline`, which is not sooner."""
        self._receive = receive
        self._deadline = deadline

    def _set_timer(self, left: float) -> None:
        seconds = left if self._watch is not None else min(left, PATIENCE_SECONDS)
        self._timer = self._loop.call_later(max(0.0, seconds), self._ring)

    def _ring(self) -> None:
        left = self._deadline - time.monotonic()
        if left < EARLY_SECONDS:
            self._end(TimeoutError)
            return
        if self._receive is not None and self._watch is None:
            self._watch = self._loop.create_task(self._hear(self._receive))
        self._set_timer(left)

    async def _hear(self, receive: Receive) -> None:
        message = await receive()
        if message["type"] == "http.disconnect":
            self._end(ClientGone)

    def _end(self, why: type[Exception]) -> None:
        if self._why is None:
            self._why = why
            self._owner.cancel()
