"""A request ends at its deadline or with its client, and whoever cancels it otherwise is heard."""

import asyncio
import time

import pytest
from starlette.types import Message

from service.errors import ClientGone
from service.web.deadline import WATCH_AFTER_SECONDS, Deadline, Deadlines


async def silence() -> Message:
    """A client that is there and says nothing."""
    await asyncio.Event().wait()
    raise AssertionError


async def hang_up() -> Message:
    return {"type": "http.disconnect"}


def test_the_deadline_ends_the_reading_of_a_body() -> None:
    """Before the body is read the first deadline counts."""

    async def read() -> None:
        with Deadline(time.monotonic() + 0.02, Deadlines()):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        asyncio.run(read())


def test_after_the_body_the_later_deadline_counts() -> None:
    """A request whose body came in time may take until its own deadline, and no longer."""

    async def answer(seconds: float) -> str:
        with Deadline(time.monotonic() + 0.05, Deadlines()) as patience:
            patience.body_is_read(silence, time.monotonic() + 2 * WATCH_AFTER_SECONDS)
            await asyncio.sleep(seconds)
        return "answered"

    assert asyncio.run(answer(0.1)) == "answered"
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(answer(60))
    assert time.monotonic() - began > 1.9 * WATCH_AFTER_SECONDS


def test_requests_that_are_answered_soon_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred requests start one timer, and once they are over no further one."""
    started: list[float] = []

    async def answer() -> None:
        loop, all_deadlines = asyncio.get_running_loop(), Deadlines()
        call_later = loop.call_later
        monkeypatch.setattr(loop, "call_later", lambda at, *rest: started.append(at) or call_later(at, *rest))
        for _ in range(100):
            with Deadline(time.monotonic() + 60, all_deadlines):
                await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.Event().wait(), 2 * WATCH_AFTER_SECONDS)

    with pytest.raises(TimeoutError):
        asyncio.run(answer())
    assert len([seconds for seconds in started if seconds <= WATCH_AFTER_SECONDS]) == 1


def test_a_request_that_began_later_is_watched_later() -> None:
    """Of two requests that share a timer, each hears of its client's hang-up, whichever began first."""

    async def answer(all_deadlines: Deadlines) -> float:
        began = time.monotonic()
        try:
            with Deadline(began + 60, all_deadlines) as patience:
                patience.body_is_read(hang_up, began + 60)
                await asyncio.sleep(60)
        except ClientGone:
            return time.monotonic() - began
        raise AssertionError

    async def both() -> list[float]:
        all_deadlines = Deadlines()
        first = asyncio.create_task(answer(all_deadlines))
        await asyncio.sleep(WATCH_AFTER_SECONDS / 2)
        return [await asyncio.create_task(answer(all_deadlines)), await first]

    assert all(0.9 * WATCH_AFTER_SECONDS < seconds < 5 for seconds in asyncio.run(both()))


def test_a_client_that_hangs_up_ends_its_request() -> None:
    """While its images wait, nobody computes for a client that is gone."""

    async def answer() -> None:
        with Deadline(time.monotonic() + 60, Deadlines()) as patience:
            patience.body_is_read(hang_up, time.monotonic() + 60)
            await asyncio.sleep(60)

    with pytest.raises(ClientGone):
        asyncio.run(answer())


def test_a_body_is_not_taken_for_a_hang_up() -> None:
    """Before the body is read nothing else may receive."""

    async def read() -> str:
        with Deadline(time.monotonic() + 60, Deadlines()):
            await asyncio.sleep(1.5 * WATCH_AFTER_SECONDS)
        return "read"

    assert asyncio.run(read()) == "read"


def test_a_task_that_somebody_else_cancels_stays_cancelled() -> None:
    """Shutting down is neither a timeout nor a hang-up."""

    async def answer() -> None:
        with Deadline(time.monotonic() + 60, Deadlines()) as patience:
            patience.body_is_read(silence, time.monotonic() + 60)
            await asyncio.sleep(60)

    async def cancel() -> None:
        task = asyncio.create_task(answer())
        await asyncio.sleep(1.5 * WATCH_AFTER_SECONDS)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


def test_after_a_timeout_the_task_goes_on_as_if_never_cancelled() -> None:
    """The answer that tells of it can be sent, and another wait begun."""

    async def answer() -> int:
        for _ in range(2):
            try:
                with Deadline(time.monotonic() + 0.01, Deadlines()):
                    await asyncio.sleep(60)
            except TimeoutError:
                await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(answer()) == 0
