"""What the tests of batching share: a model that can be held up or made to fail, and a queue in front of it."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import numpy as np

from service.model.images import Pixels
from service.serving.batcher import Batcher


def image(value: int) -> Pixels:
    return np.full((1, 1, 3), value % 256, np.uint8)


class Model:
    """Answers each image with its own value; can be held in the middle of a batch, and can fail."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.where: list[str] = []  # which thread ran each
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.go_on.set()
        self.fails_on: set[int] = set()
        self.waits: list[float] = []

    def __call__(self, images: Pixels) -> Sequence[int]:
        values = [int(value) for value in images[:, 0, 0, 0]]
        self.batches.append(values)
        self.where.append(threading.current_thread().name)
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
async def batcher(
    model: Model, max_batch: int = 4, max_queue: int = 100, workers: int = 1
) -> AsyncIterator[Batcher[int]]:
    limits = {"max_batch": max_batch, "max_queue": max_queue, "workers": workers}
    queue: Batcher[int] = Batcher(model, name="test", observer=model, **limits)
    yield queue
    model.go_on.set()
    await asyncio.to_thread(queue.close)


async def ask(queue: Batcher[int], *values: int, seconds: float = 60.0) -> list[int]:
    with queue.admit(len(values), time.monotonic() + seconds) as ticket:
        for place, value in enumerate(values):
            queue.put(ticket, place, image(value))
        return await ticket.result()


async def ask_pixels(queue: Batcher[int], *values: int) -> list[int]:
    """As a request whose images need no decoding."""
    with queue.admit(len(values), time.monotonic() + 60) as ticket:
        queue.put_all(ticket, [image(value) for value in values])
        return await ticket.result()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def start(*asks: Awaitable[list[int]]) -> list[asyncio.Task[list[int]]]:
    """Tasks that have all put their images into the queue."""
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    await asyncio.sleep(0)
    return tasks
