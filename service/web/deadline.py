"""How long a request may take, and whether its client is still connected: one timer for both.

Most requests are answered before that timer first fires, so all they pay for is to start and to cancel it.
"""

import asyncio
import time
from types import TracebackType
from typing import Self

from starlette.types import Receive

from service.errors import ClientGone

# Most answers are sooner than this, also of a busy service. Watching all requests for a disconnect would cost a task
# each, and save one image at most.
WATCH_AFTER_SECONDS = 0.2
# Timers fire on whole milliseconds, and so a little early.
EARLY_SECONDS = 0.001


class Deadline:
    """A context that ends with TimeoutError at its deadline, or with ClientGone if the client disconnects before."""

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
        # Not before the task first waits. Until then a timer could not end it, and by then an image that was whole at
        # once has been handed to its thread: starting the timer delays nothing.
        self._timer: asyncio.Handle = self._loop.call_soon(self._wait_for_deadline)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
        # The task may have been cancelled from elsewhere too: then it stays cancelled.
        if self._why is not None and self._owner.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._why from error

    def body_is_read(self, receive: Receive, deadline: float) -> None:
        """From now on only a disconnect can be received, and there is time until `deadline`, which is not sooner."""
        self._receive = receive
        self._deadline = deadline

    def _wait_for_deadline(self) -> None:
        self._start_timer(self._deadline - time.monotonic())

    def _start_timer(self, left: float) -> None:
        seconds = left if self._watch is not None else min(left, WATCH_AFTER_SECONDS)
        self._timer = self._loop.call_later(max(0.0, seconds), self._timer_fired)

    def _timer_fired(self) -> None:
        left = self._deadline - time.monotonic()
        if left < EARLY_SECONDS:
            self._end(TimeoutError)
            return
        if self._receive is not None and self._watch is None:
            self._watch = self._loop.create_task(self._watch_for_disconnect(self._receive))
        self._start_timer(left)

    async def _watch_for_disconnect(self, receive: Receive) -> None:
        message = await receive()
        if message["type"] == "http.disconnect":
            self._end(ClientGone)

    def _end(self, why: type[Exception]) -> None:
        if self._why is None:
            self._why = why
            self._owner.cancel()
