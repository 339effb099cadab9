"""How long a request may take, and whether its client is still connected: one timer for both.

Most requests are answered before that timer would first fire. Until then all of them share one, so that a request that
is answered soon starts and cancels none.
"""

import asyncio
import time
from collections import deque
from types import TracebackType
from typing import Self

from starlette.types import Receive

from service.errors import ClientGone

# Most answers are sooner than this, also of a busy service. Watching all requests for a disconnect would cost a task
# each, and save one image at most.
WATCH_AFTER_SECONDS = 0.2
# Timers fire on whole milliseconds, and so a little early.
EARLY_SECONDS = 0.001


class Deadlines:
    """The requests that began within the last WATCH_AFTER_SECONDS, oldest first, and the timer that they share."""

    def __init__(self) -> None:
        self._young: deque[Deadline] = deque()
        self._shared_timer: asyncio.TimerHandle | None = None

    def begin(self, deadline: "Deadline", loop: asyncio.AbstractEventLoop) -> None:
        self._young.append(deadline)
        if self._shared_timer is None:
            self._shared_timer = loop.call_later(WATCH_AFTER_SECONDS, self._watch_the_oldest, loop)

    def _watch_the_oldest(self, loop: asyncio.AbstractEventLoop) -> None:
        now, young = time.monotonic(), self._young
        while young and (young[0].over or young[0].watched_from - now < EARLY_SECONDS):
            oldest = young.popleft()
            if not oldest.over:
                oldest.watch()
        self._shared_timer = None
        if young:
            self._shared_timer = loop.call_later(young[0].watched_from - now, self._watch_the_oldest, loop)


class Deadline:
    """A context that ends with TimeoutError at its deadline, or with ClientGone if the client disconnects before."""

    __slots__ = (
        *("_all", "_cancelling", "_deadline", "_loop", "_owner", "_receive", "_timer", "_watch", "_why"),
        *("over", "watched_from"),
    )

    def __init__(self, deadline: float, all_deadlines: Deadlines) -> None:
        self._deadline = deadline  # on the clock of time.monotonic()
        self._all = all_deadlines
        self._receive: Receive | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None
        self._why: type[Exception] | None = None
        self.over = False

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        owner = asyncio.current_task(self._loop)
        assert owner is not None  # coroutines run in tasks
        self._owner, self._cancelling = owner, owner.cancelling()
        now = time.monotonic()
        self.watched_from = now + WATCH_AFTER_SECONDS
        if self._deadline < self.watched_from:
            self._start_timer(self._deadline - now)
        else:
            self._all.begin(self, self._loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over = True
        self._receive = None
        if self._timer is not None:
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

    def watch(self) -> None:
        """From now on a disconnect is noticed, and the deadline has a timer of its own."""
        left = self._deadline - time.monotonic()
        if left < EARLY_SECONDS:
            self._end(TimeoutError)
            return
        if self._receive is not None and self._watch is None:
            self._watch = self._loop.create_task(self._watch_for_disconnect(self._receive))
        self._start_timer(left if self._watch is not None else min(left, WATCH_AFTER_SECONDS))

    def _start_timer(self, seconds: float) -> None:
        self._timer = self._loop.call_later(max(0.0, seconds), self.watch)

    async def _watch_for_disconnect(self, receive: Receive) -> None:
        message = await receive()
        if message["type"] == "http.disconnect":
            self._end(ClientGone)

    def _end(self, why: type[Exception]) -> None:
        if self._why is None:
            self._why = why
            self._owner.cancel()
