"""Natural batching, observed from outside: which images ran together, and who got which answer."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from service.errors import InferenceFailed, InvalidImage, NotReady, QueueFull
from service.model.images import Pixels
from service.serving.batcher import Batcher


def image(value: int) -> Pixels:
    return np.full((1, 1, 3), value % 256, np.uint8)


class Model:
    """Answers each image with its own value; can be held in the middle of a batch, and can fail."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.go_on.set()
        self.fails_on: set[int] = set()
        self.waits: list[float] = []

    def __call__(self, images: Pixels) -> Sequence[int]:
        values = [int(value) for value in images[:, 0, 0, 0]]
        self.batches.append(values)
        self.entered.release()
        assert self.go_on.wait(30)
        if self.fails_on & set(values):
            raise KeyError("no such kernel")
        return values

    def batch_done(self, waits: Sequence[float], seconds: float) -> None:  # noqa: ARG002 - the protocol's
        self.waits += waits

    async def wait_until_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=30)


@asynccontextmanager
async def batcher(model: Model, max_batch: int = 4, max_queue: int = 100) -> AsyncIterator[Batcher[int]]:
    queue: Batcher[int] = Batcher(model, name="test", max_batch=max_batch, max_queue=max_queue, observer=model)
    yield queue
    model.go_on.set()
    await asyncio.to_thread(queue.close)


async def ask(queue: Batcher[int], *values: int, seconds: float = 60.0) -> list[int]:
    with queue.admit(len(values), time.monotonic() + seconds) as ticket:
        for place, value in enumerate(values):
            queue.put(ticket, place, image(value))
        return await ticket.result()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def start(*asks: Awaitable[list[int]]) -> list[asyncio.Task[list[int]]]:
    """Tasks that have all put their images into the queue."""
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    await asyncio.sleep(0)
    return tasks


def test_an_idle_queue_answers_at_once() -> None:
    """A single image does not wait for company."""

    async def test() -> None:
        model = Model()
        async with batcher(model) as queue:
            assert await ask(queue, 7) == [7]
            assert await ask(queue, 8) == [8]
        assert model.batches == [[7], [8]]

    run(test)


def test_an_idle_thread_prepares_its_own_image() -> None:
    """Work given to an idle model runs in its thread, what arrives meanwhile joins the batch; a busy one takes none."""

    async def test() -> None:
        model, preparing, go_on, where = Model(), threading.Event(), threading.Event(), []
        async with batcher(model) as queue:
            with queue.admit(1, time.monotonic() + 60) as ticket:

                def prepare() -> None:
                    where.append(threading.current_thread().name)
                    preparing.set()
                    assert go_on.wait(30)
                    queue.put(ticket, 0, image(2))

                assert queue.prepare_if_idle(prepare)
                assert await asyncio.to_thread(preparing.wait, 30)
                assert not queue.prepare_if_idle(prepare)
                (other,) = await start(ask(queue, 1))
                go_on.set()
                assert await ticket.result() == [2]
            assert await other == [1]
            assert await ask(queue, 3) == [3]
        assert model.batches == [[1, 2], [3]]
        assert where == ["test_0"]
        assert not queue.prepare_if_idle(prepare)

    run(test)


def test_arrivals_gather_while_a_batch_runs() -> None:
    """What arrives during a batch forms the next one, up to max_batch images, in order of arrival."""

    async def test() -> None:
        model = Model()
        async with batcher(model) as queue:
            model.go_on.clear()
            first = await start(ask(queue, 0))
            await model.wait_until_entered()
            others = await start(*(ask(queue, value) for value in range(1, 7)))
            assert queue.images == 6
            model.go_on.set()
            assert await asyncio.gather(*first, *others) == [[value] for value in range(7)]
        assert model.batches == [[0], [1, 2, 3, 4], [5, 6]]
        assert queue.images == 0
        assert len(model.waits) == 7

    run(test)


def test_a_large_request_is_split_and_put_together_again() -> None:
    """A request with more images than max_batch gets all its rows, in their order."""

    async def test() -> None:
        model = Model()
        async with batcher(model) as queue:
            assert await ask(queue, *range(10)) == list(range(10))
        assert [value for batch in model.batches for value in batch] == list(range(10))
        assert max(len(batch) for batch in model.batches) <= 4

    run(test)


def test_the_queue_is_bounded_in_images() -> None:
    """Images beyond the limit are turned away with a time to come back; dispatch makes room again."""

    async def test() -> None:
        model = Model()
        async with batcher(model, max_queue=5) as queue:
            model.go_on.clear()
            first = await start(ask(queue, 0))
            await model.wait_until_entered()
            waiting = await start(ask(queue, 1, 2, 3))
            with pytest.raises(QueueFull, match="3 images are waiting and there is room for 5") as caught:
                queue.admit(3, 0.0)
            assert caught.value.retry_after >= 1
            with queue.admit(2, 0.0):
                assert queue.images == 5
            assert queue.images == 3
            model.go_on.set()
            await asyncio.gather(*first, *waiting)
            assert await ask(queue, 4, 5, 6, 7, 8) == [4, 5, 6, 7, 8]

    run(test)


def test_images_that_did_not_decode_give_their_room_back() -> None:
    """A refused image holds no room, and its error takes the place of its row."""

    async def test() -> None:
        model = Model()
        bad = InvalidImage("not an image")
        async with batcher(model) as queue:
            with queue.admit(3, time.monotonic() + 60) as ticket:
                queue.refuse(ticket, 0, bad)
                queue.refuse(ticket, 2, bad)
                assert queue.images == 1
                queue.put(ticket, 1, image(9))
                assert await ticket.result() == [bad, 9, bad]
            assert queue.images == 0

    run(test)


def test_an_image_that_comes_after_its_request_ended_is_dropped() -> None:
    """A decoder that finishes after its request was cancelled changes nothing."""

    async def test() -> None:
        model = Model()
        async with batcher(model) as queue:
            with queue.admit(2, time.monotonic() + 60) as ticket:
                pass
            queue.put(ticket, 0, image(1))
            queue.refuse(ticket, 1, InvalidImage("too late"))
            assert queue.images == 0
            assert await ask(queue, 2) == [2]
        assert model.batches == [[2]]

    run(test)


def test_a_cancelled_request_leaves_its_batch_mates_untouched() -> None:
    """Images of a cancelled request are dropped before dispatch; the others get their own answers."""

    async def test() -> None:
        model = Model()
        async with batcher(model) as queue:
            model.go_on.clear()
            first = await start(ask(queue, 0))
            await model.wait_until_entered()
            one, gone, two = await start(ask(queue, 1), ask(queue, 2, 3), ask(queue, 4))
            gone.cancel()
            await asyncio.wait([gone])
            assert queue.images == 2
            model.go_on.set()
            assert await asyncio.gather(*first, one, two) == [[0], [1], [4]]
        assert model.batches == [[0], [1, 4]]

    run(test)


def test_a_request_cancelled_during_its_batch_harms_nobody() -> None:
    """A client that leaves while its batch runs does not disturb the others in it."""

    async def test() -> None:
        model = Model()
        async with batcher(model) as queue:
            model.go_on.clear()
            first = await start(ask(queue, 0))
            await model.wait_until_entered()
            gone, stays = await start(ask(queue, 1), ask(queue, 2))
            first[0].cancel()
            model.go_on.set()
            await model.wait_until_entered()
            gone.cancel()
            assert await stays == [2]
        assert model.batches == [[0], [1, 2]]

    run(test)


def test_images_past_their_deadline_are_not_computed() -> None:
    """An image whose answer would come too late is dropped before dispatch."""

    async def test() -> None:
        model = Model()
        async with batcher(model) as queue:
            model.go_on.clear()
            first = await start(ask(queue, 0))
            await model.wait_until_entered()
            late, good = await start(ask(queue, 1, seconds=0.0), ask(queue, 2))
            model.go_on.set()
            assert await asyncio.gather(*first, good) == [[0], [2]]
            assert not late.done()  # its own timeout ends it, not the queue
            late.cancel()
        assert model.batches == [[0], [2]]

    run(test)


def test_a_failing_batch_fails_only_itself() -> None:
    """Whatever a batch raises, its requests are told, and the next batch runs as if nothing had happened."""

    async def test() -> None:
        model = Model()
        async with batcher(model) as queue:
            model.fails_on = {13}
            model.go_on.clear()
            first = await start(ask(queue, 0))
            await model.wait_until_entered()
            doomed = await start(*(ask(queue, value) for value in (1, 2, 3, 13)))
            saved = await start(ask(queue, 5))
            model.go_on.set()
            results = await asyncio.gather(*first, *doomed, *saved, return_exceptions=True)
        assert results[0] == [0]
        assert all(isinstance(result, InferenceFailed) for result in results[1:5])
        assert results[5] == [5]
        assert queue.images == 0

    run(test)


def test_a_request_split_over_batches_fails_once() -> None:
    """When one of a request's batches fails, it fails, and its images that still wait are dropped."""

    async def test() -> None:
        model = Model()
        model.fails_on = {1}
        async with batcher(model, max_batch=2) as queue:
            with pytest.raises(InferenceFailed):
                await ask(queue, 0, 1, 2, 3, 4, 5)
            assert await ask(queue, 9) == [9]
            assert queue.images == 0

    run(test)


def test_hundreds_of_clients_each_get_their_own_answer() -> None:
    """Among 400 clients that cancel, come too late, fail or wait, everyone who waits gets his own answer."""

    async def test() -> None:
        rng = random.Random(0)
        model = Model()
        model.fails_on = {13}
        async with batcher(model, max_batch=8, max_queue=2000) as queue:
            asked = [[rng.randrange(14, 256) for _ in range(rng.randrange(1, 5))] for _ in range(400)]
            for values in asked[::20]:
                values[0] = 13
            tasks = await start(
                *(ask(queue, *values, seconds=0.0 if i % 7 == 3 else 60.0) for i, values in enumerate(asked))
            )
            for task in tasks[::5]:
                task.cancel()
            late = {task for i, task in enumerate(tasks) if i % 7 == 3}
            await asyncio.wait(set(tasks) - late)
            for task in late:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert queue.images == 0
        answered = [(values, result) for values, result in zip(asked, results, strict=True) if isinstance(result, list)]
        assert len(answered) > 100
        assert all(values == result for values, result in answered)
        others = [result for result in results if not isinstance(result, list)]
        assert all(isinstance(result, InferenceFailed | asyncio.CancelledError) for result in others)

    run(test)


def test_closing_tells_those_who_wait() -> None:
    """A queue that is closed finishes the batch that runs, and tells everyone else that it is over."""

    async def test() -> None:
        model = Model()
        async with batcher(model) as queue:
            model.go_on.clear()
            first = await start(ask(queue, 0))
            await model.wait_until_entered()
            waiting = await start(ask(queue, 1))
            closing = asyncio.create_task(asyncio.to_thread(queue.close))
            while True:
                try:
                    with queue.admit(1, 0.0):
                        await asyncio.sleep(0)
                except NotReady:
                    break
            model.go_on.set()
            await closing
            assert await first[0] == [0]
            with pytest.raises(NotReady):
                await waiting[0]

    run(test)
