"""Requests that are cancelled, fail, come too late or meet a closed queue: nobody else's answer suffers."""

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from service.errors import InferenceFailed, InvalidImage, NotReady
from tests.service.serving.batching import Model, ask, batcher, image, run, start


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


def test_counting_cannot_take_an_answer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is counted when its answers are on their way, so that an observer that fails costs nobody theirs."""
    model = Model()

    def fail(waits: Sequence[float], seconds: float) -> None:  # noqa: ARG001 - the protocol's
        raise KeyError("no such metric")

    monkeypatch.setattr(model, "batch_done", fail)

    async def test() -> None:
        async with batcher(model) as queue:
            assert await ask(queue, 1, 2) == [1, 2]
            assert await ask(queue, 3) == [3]

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
