"""Natural batching: an idle model answers at once; while a batch runs, arrivals gather and form the next one.

There is no fixed waiting time. Everything is counted in images. A queue has one or more workers, threads that run
batches back to back and do not wait for the event loop between two of them; the loop gets a whole batch in one call.
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, NamedTuple, NoReturn, Protocol, Self, TypeVar

import numpy as np

from service.errors import InferenceFailed, NotReady, QueueFull, RequestError
from service.model.images import Pixels

Row = TypeVar("Row")
Wake = SimpleQueue[Callable[[], None] | None]  # what a worker waits for: something to prepare, or None to end

log = logging.getLogger("confgate")

UNLOADED = "this version of the model is no longer served; send the request again"


class BatchObserver(Protocol):
    """Is told about each batch that ran, from the inference thread."""

    def batch_done(self, waits: Sequence[float], seconds: float) -> None: ...


class Ticket(Generic[Row]):
    """Room in the queue for one request's images, until they are dispatched or the request is over.

    Used as a context: leaving it gives unused room back and drops images that still wait.
    """

    __slots__ = ("_batcher", "_left", "_rows", "deadline", "future", "held", "over")

    def __init__(self, batcher: "Batcher[Row]", images: int, deadline: float) -> None:
        self._batcher = batcher
        self._left = images
        self._rows: list[Row | RequestError | None] = [None] * images
        self.deadline = deadline
        self.held = images
        self.over = False
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._batcher.release(self)

    async def result(self) -> list[Row | RequestError]:
        """One row for each image, in their order, or the error that took its place."""
        await self.future
        return [row for row in self._rows if row is not None]

    def settle(self, place: int, row: Row | RequestError) -> None:
        """On the event loop: one image has its answer."""
        self._rows[place] = row
        self._left -= 1
        if not self._left and not self.future.done():
            self.future.set_result(None)

    def fail(self, error: RequestError) -> None:
        """On the event loop: the whole request has its error."""
        self.over = True
        if not self.future.done():
            self.future.set_exception(error)


class _Waiting(NamedTuple, Generic[Row]):
    ticket: Ticket[Row]
    place: int
    image: Pixels
    since: float


class Batcher(Generic[Row]):
    """A bounded queue of images and the workers that run them through `run`, batch by batch.

    `run` returns a row for each image, or the error of that image alone; what it raises fails the whole batch. Several
    workers call it at once.
    """

    def __init__(
        self,
        run: Callable[[Pixels], Sequence[Row | RequestError]],
        *,
        name: str,
        max_batch: int,
        max_queue: int,
        observer: BatchObserver,
        workers: int = 1,
    ) -> None:
        self._run = run
        self._max_batch = max_batch
        self._observer = observer
        self.max_queue = max_queue
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting[Row]] = deque()
        self._images = 0  # admitted and not yet dispatched: being decoded, or waiting
        self._crowded = False  # whether the last batch held images of several requests
        self._wakes_soon = False  # whether the event loop will wake a worker in its next turn
        self._closed = False
        self._seconds_per_image = 0.01
        # Not an executor: that would make a Future for every batch, and nothing here waits for one. The worker that
        # became idle last is woken first: its CPU still has in its cache what the network needs.
        self._wakes: list[Wake] = [SimpleQueue() for _ in range(workers)]
        self._idle = self._wakes[::-1]
        self._coming = 0  # workers that were woken and have not taken their images yet
        self._threads = [
            threading.Thread(target=self._work, args=(wake,), name=f"{name}-{number}", daemon=True)
            for number, wake in enumerate(self._wakes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def images(self) -> int:
        """Images that are admitted and not yet being computed."""
        return self._images

    @property
    def seconds_per_image(self) -> float:
        """A moving average of the time for one image, where all workers compute."""
        return self._seconds_per_image / len(self._threads)

    def admit(self, images: int, deadline: float) -> Ticket[Row]:
        """Reserves room for that many images, or raises QueueFull, before any work is done for them."""
        with self._lock:
            if self._closed:
                raise NotReady(UNLOADED)
            if self._images + images > self._room_for(images):
                wait = max(1, math.ceil(self._images * self.seconds_per_image))
                raise QueueFull(
                    f"{self._images} images are waiting and there is room for {self.max_queue}; try again in {wait} s",
                    retry_after=wait,
                )
            self._images += images
        return Ticket(self, images, deadline)

    def _room_for(self, images: int) -> int:
        """A part of the queue is kept for requests with one image, which those with many must not shut out."""
        reserve = self.max_queue // 8
        return self.max_queue if images == 1 or images + reserve > self.max_queue else self.max_queue - reserve

    def put(self, ticket: Ticket[Row], place: int, image: Pixels) -> None:
        """From any thread: adds an image to the queue. Its batch may hold images of other requests."""
        with self._lock:
            if ticket.over:
                return
            if not self._closed:
                self._waiting.append(_Waiting(ticket, place, image, time.monotonic()))
                self._wake_for_waiting()
                return
        self.refuse(ticket, place, NotReady(UNLOADED))

    def put_all(self, ticket: Ticket[Row], images: Sequence[Pixels]) -> None:
        """On the event loop: adds all images of a request, in their order."""
        now = time.monotonic()
        with self._lock:
            if self._closed:
                raise NotReady(UNLOADED)
            self._waiting.extend([_Waiting(ticket, place, image, now) for place, image in enumerate(images)])
            if not self._crowded:
                self._wake_for_waiting()
                return
            if self._wakes_soon or not self._idle:
                return
            self._wakes_soon = True
        # The requests that the event loop has read by now come first, and join the batch. Woken at once, a worker would
        # take this one alone, and the two threads would stop each other for the GIL.
        ticket.future.get_loop().call_soon(self._wake_soon)

    def prepare_if_idle(self, prepare: Callable[[], None]) -> bool:
        """If a worker is idle: runs `prepare`, which puts an image, in it, and then the batch.

        That saves a change of threads. An image that arrives meanwhile joins the batch.
        """
        with self._lock:
            if not self._idle or self._waiting or self._closed:
                return False
            self._wake(prepare)
        return True

    def refuse(self, ticket: Ticket[Row], place: int, error: RequestError) -> None:
        """From any thread: an image of a request will not be put; the error takes the place of its row."""
        with self._lock:
            if ticket.over:
                return
            ticket.held -= 1
            self._images -= 1
        ticket.future.get_loop().call_soon_threadsafe(ticket.settle, place, error)

    def shed(self, ticket: Ticket[Row], error: QueueFull) -> None:
        """From any thread: there is no room for an image of a request, which fails as a whole and at once."""
        self.release(ticket)
        ticket.future.get_loop().call_soon_threadsafe(ticket.fail, error)

    def release(self, ticket: Ticket[Row]) -> None:
        with self._lock:
            self._images -= ticket.held
            ticket.held = 0
            ticket.over = True

    def close(self) -> None:
        """Stops after the batches that are running; requests that still wait get NotReady."""
        with self._lock:
            self._closed = True
        for wake in self._wakes:
            wake.put(None)
        for thread in self._threads:
            thread.join()
        _fail_all(self._waiting, NotReady(UNLOADED))
        self._waiting.clear()
        self._run = _closed  # frees what it ran, and not only with the last reference to this object

    def _wake(self, prepare: Callable[[], None]) -> None:
        """With the lock held, and a worker idle."""
        self._coming += 1
        self._idle.pop().put(prepare)

    def _wake_soon(self) -> None:
        with self._lock:
            self._wakes_soon = False
            if not self._closed:
                self._wake_for_waiting()

    def _wake_for_waiting(self) -> None:
        """With the lock held: a worker for what waits, unless enough of them are on their way."""
        if self._idle and len(self._waiting) > self._coming:
            self._wake(_nothing)

    def _work(self, wake: Wake) -> None:
        while (prepare := wake.get()) is not None:
            try:
                prepare()
            except Exception:
                # The image has been answered by now. A bad one must not end the thread.
                log.exception("preparing an image failed")
            self._run_batch()
            while self._has_more(wake):
                self._run_batch()

    def _has_more(self, wake: Wake) -> bool:
        with self._lock:
            more = bool(self._waiting) and not self._closed
            if more:
                self._coming += 1
            else:
                self._idle.append(wake)
            return more

    def _run_batch(self) -> None:
        with self._lock:
            batch = self._take()
        try:
            if batch:
                self._compute(batch)
        except RequestError as error:  # it says itself what to tell, and was logged
            _fail_all(batch, error)
        except Exception as error:
            # Whatever a batch raises must not end the thread.
            log.error("a batch failed", exc_info=error, extra={"images": len(batch)})
            _fail_all(batch, InferenceFailed("the model failed on the batch with this image"))

    def _compute(self, batch: list[_Waiting[Row]]) -> None:
        started = time.monotonic()
        self._crowded = batch[0].ticket is not batch[-1].ticket
        rows = self._run(_stacked([item.image for item in batch]))
        seconds = time.monotonic() - started
        with self._lock:
            self._seconds_per_image += 0.1 * (seconds / len(batch) - self._seconds_per_image)
        # One call wakes the event loop for all of them.
        loop = batch[0].ticket.future.get_loop()
        loop.call_soon_threadsafe(self._deliver, loop, batch, rows, started, seconds)

    def _deliver(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: Sequence[_Waiting[Row]],
        rows: Sequence[Row | RequestError],
        started: float,
        seconds: float,
    ) -> None:
        """On the event loop: wakes the requests of a batch, and has it counted when they have been answered."""
        for item, row in zip(batch, rows, strict=True):
            item.ticket.settle(item.place, row)
        # Here the worker would hold the GIL for it, and the event loop could not wake up.
        loop.call_soon(self._observer.batch_done, [started - item.since for item in batch], seconds)

    def _take(self) -> list[_Waiting[Row]]:
        """With the lock held: a worker's share of what waits, without images whose request is over or too late."""
        now = time.monotonic()
        self._coming -= 1
        batch: list[_Waiting[Row]] = []
        share = min(self._max_batch, math.ceil(len(self._waiting) / len(self._threads)))
        while self._waiting and len(batch) < share:
            item = self._waiting.popleft()
            ticket = item.ticket
            if ticket.over:
                continue  # its room was released when it ended
            ticket.held -= 1
            self._images -= 1
            if now < ticket.deadline:
                batch.append(item)
        self._wake_for_waiting()
        return batch


def _stacked(images: Sequence[Pixels]) -> Pixels:
    """[N, H, W, 3] of images [H, W, 3], as np.stack makes it, without its steps in Python for each image."""
    # One image alone, the most frequent batch of a service that is not busy, need not be copied.
    if len(images) == 1:
        return images[0][np.newaxis]
    return np.concatenate(images).reshape(len(images), *images[0].shape)


def _nothing() -> None:
    """For a batch that needs no preparation."""


def _closed(_: Pixels) -> NoReturn:
    raise NotReady(UNLOADED)


def _fail_all(items: Iterable[_Waiting[Row]], error: RequestError) -> None:
    for ticket in {id(item.ticket): item.ticket for item in items}.values():
        ticket.future.get_loop().call_soon_threadsafe(ticket.fail, error)
