"""Natural batching, observed from outside: which images ran together, and who got which answer."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from service.errors import InvalidImage, NotReady, QueueFull
from service.serving.batcher import Batcher, Ticket
from tests.service.serving.batching import Model, ask, ask_pixels, batcher, image, run, start


def test_an_idle_queue_answers_at_once() -> None:
    """A single image does not wait for company."""

    async def test() -> None:
        model = Model()
        async with batcher(model) as queue:
            assert await ask(queue, 7) == [7]
            assert await ask(queue, 8) == [8]
        assert model.batches == [[7], [8]]

    run(test)


def test_requests_of_one_turn_of_the_loop_run_together_after_a_crowded_batch() -> None:
    """Where the last batch held several requests, those that the event loop has read by now form the next one."""

    async def give_up_the_gil() -> list[int]:
        time.sleep(0.1)  # noqa: ASYNC251 - an inference thread that was woken already would run the first one alone
        return []

    async def test() -> None:
        model = Model()
        async with batcher(model) as queue:
            model.go_on.clear()
            (first,) = await start(ask_pixels(queue, 1))
            await model.wait_until_entered()
            crowd = await start(ask_pixels(queue, 2), ask_pixels(queue, 3))
            model.go_on.set()
            assert [await first, *(await asyncio.gather(*crowd))] == [[1], [2], [3]]
            # The thread looks once more for images before it waits to be woken.
            while not queue._idle:  # noqa: ASYNC110 - it tells nobody when it waits
                await asyncio.sleep(0)
            asks = [ask_pixels(queue, *values) for values in ((4,), (5, 6), (7,))]
            asks.insert(1, give_up_the_gil())
            assert await asyncio.gather(*asks) == [[4], [], [5, 6], [7]]
        assert model.batches == [[1], [2, 3], [4, 5, 6, 7]]

    run(test)


def test_pixels_for_a_queue_that_was_closed_meanwhile_are_refused() -> None:
    """A request that was admitted before the model was unloaded is told so."""

    async def test() -> None:
        async with batcher(Model()) as queue:
            with queue.admit(1, time.monotonic() + 60) as ticket:
                await asyncio.to_thread(queue.close)
                with pytest.raises(NotReady, match="no longer served"):
                    queue.put_all(ticket, [image(1)])
            assert queue.images == 0

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
        assert where == ["test-0"]
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


def test_workers_compute_batches_at_the_same_time() -> None:
    """While one batch runs, an idle worker takes the next image; with all busy, each takes its share of what waits."""

    async def test() -> None:
        model = Model()
        async with batcher(model, max_batch=8, workers=2) as queue:
            model.go_on.clear()
            first = await start(ask(queue, 0))
            await model.wait_until_entered()
            second = await start(ask(queue, 1))
            await model.wait_until_entered()  # though the first batch still runs
            others = await start(*(ask(queue, value) for value in range(2, 8)))
            assert queue.images == 6
            model.go_on.set()
            assert await asyncio.gather(*first, *second, *others) == [[value] for value in range(8)]
        assert model.batches[:2] == [[0], [1]]
        assert model.batches[2] == [2, 3, 4]
        assert sorted(value for batch in model.batches for value in batch) == list(range(8))

    run(test)


def prepare_when_idle(queue: Batcher[int], prepare: Callable[[], None]) -> None:
    """A worker that has just answered is not idle yet."""
    until = time.monotonic() + 30
    while not queue.prepare_if_idle(prepare):
        assert time.monotonic() < until


def test_an_image_for_an_idle_model_wakes_one_worker() -> None:
    """A preparing worker computes its own image, also where others are idle; another image goes to another worker."""

    async def test() -> None:
        model, where = Model(), []
        async with batcher(model, workers=2) as queue:
            for value in range(20):
                with queue.admit(1, time.monotonic() + 60) as ticket:

                    def prepare(ticket: Ticket[int] = ticket, value: int = value) -> None:
                        where.append(threading.current_thread().name)
                        queue.put(ticket, 0, image(value))

                    await asyncio.to_thread(prepare_when_idle, queue, prepare)
                    assert await ticket.result() == [value]
            assert model.where == where
            model.go_on.clear()
            with queue.admit(1, time.monotonic() + 60) as ticket:
                await asyncio.to_thread(prepare_when_idle, queue, lambda: queue.put(ticket, 0, image(20)))
                await model.wait_until_entered()
                (other,) = await start(ask(queue, 21))
                await asyncio.to_thread(lambda: [model.entered.acquire(timeout=30) for _ in range(21)])
                assert model.batches[-2:] == [[20], [21]]
                model.go_on.set()
                assert await ticket.result() == [20]
            assert await other == [21]

    run(test)
