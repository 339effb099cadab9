"""Decoding in worker processes, for images that take more than a few milliseconds: it can be stopped there.

A few threads hand jobs to as many workers. A worker that exceeds its CPU time or memory dies and is replaced; one whose
request is over is killed. An image that could not be decoded by its deadline is refused at once.
"""

import logging
import os
import socket
import threading
import time
from bisect import insort
from operator import attrgetter
from queue import Empty, SimpleQueue

from service.errors import InferenceFailed, QueueFull, RequestError, TooLarge
from service.model.headers import Header
from service.model.images import Pixels
from service.serving.budgets import LOOK_SECONDS
from service.serving.worker_process import Job, Nursery, Worker, WorkerLimits

log = logging.getLogger("confgate")

# An image that takes longer to decode goes to a worker; others are decoded in a thread of the service.
THREAD_SECONDS = 0.006
SHRINK_SECONDS = 30.0


class DecodeWorkers:
    """Threads, each with a worker process of its own, and the jobs that wait for them.

    The cheapest job that fits into the memory goes first: a photo does not wait behind files made to be slow.
    """

    def __init__(self, workers: int, limits: WorkerLimits) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._waiting: list[Job] = []  # cheapest first
        self._running: list[Job] = []
        self._starting = threading.Lock()  # its own, because starting takes a while and `submit` must not wait
        self._closed = False
        self._nursery: Nursery | None = None
        self._workers: set[Worker] = set()
        self._threads = [
            threading.Thread(target=self._run, name=f"decode-worker-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def supported() -> bool:
        """Whether this system can fork and hand sockets on."""
        return hasattr(os, "fork") and hasattr(socket, "send_fds")

    def submit(self, job: Job, deadline: float) -> None:
        """From any thread; raises where the image takes too much memory, or would not be decoded by its deadline."""
        if job.memory_bytes > self._limits.memory_bytes:
            needed, allowed = job.memory_bytes, self._limits.memory_bytes
            raise TooLarge(
                f"decoding the image takes about {needed // 1_000_000} MB of memory; {allowed // 1_000_000} MB are "
                "allowed (the setting `decoding_mb`): send a smaller image"
            )
        with self._changed:
            ahead = [*self._running, *(other for other in self._waiting if other.seconds <= job.seconds)]
            wait = sum(other.seconds for other in ahead) / len(self._threads)
            if time.monotonic() + wait + job.seconds > deadline:
                retry_after = max(1, round(wait))
                raise QueueFull(
                    f"large images that arrived before would keep this one waiting until after its deadline; try again "
                    f"in {retry_after} s",
                    retry_after=retry_after,
                )
            insort(self._waiting, job, key=attrgetter("seconds"))
            self._changed.notify()

    def shrink(self, encoded: bytes, header: Header, side: int, max_pixels: int) -> Pixels:
        """Waits for an image with no side longer than `side`; raises RequestError."""
        replies: SimpleQueue[Pixels | RequestError] = SimpleQueue()
        deadline = time.monotonic() + SHRINK_SECONDS
        is_over = lambda: time.monotonic() > deadline  # noqa: E731 - one line says it all
        self.submit(Job(encoded, header, max_pixels, replies.put, is_over, side=side), deadline)
        try:
            reply = replies.get(timeout=2 * SHRINK_SECONDS)
        except Empty:
            raise TooLarge("the image was not decoded in time") from None
        if isinstance(reply, RequestError):
            raise reply
        return reply

    def close(self) -> None:
        """Kills the workers; images that wait are dropped."""
        with self._changed:
            self._closed = True
            for worker in self._workers:
                worker.kill()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(LOOK_SECONDS * 20)
        if self._nursery is not None:
            self._nursery.close()

    def _run(self) -> None:
        worker: Worker | None = None
        while (job := self._next()) is not None:
            try:
                worker = self._decode(job, worker)
            except Exception:
                # A bad image, or a worker that cannot be started, must not end a thread that all others need.
                if not self._closed:
                    log.exception("a decoding job failed")
                self._discard(worker)
                worker = None
                job.done(InferenceFailed("the image could not be decoded; the service's log says why"))
            finally:
                with self._changed:
                    self._running.remove(job)
                    self._changed.notify_all()
            del job

    def _next(self) -> Job | None:
        """Waits for a job that fits into the memory which the running ones leave; None when the service stops."""
        with self._changed:
            while not self._closed:
                self._waiting = [job for job in self._waiting if not job.is_over()]
                room = self._limits.memory_bytes - sum(job.memory_bytes for job in self._running)
                job = next((job for job in self._waiting if job.memory_bytes <= room), None)
                if job is not None:
                    self._waiting.remove(job)
                    self._running.append(job)
                    return job
                # Jobs that wait for room may be over before there is any.
                self._changed.wait(LOOK_SECONDS if self._waiting else None)
            return None

    def _decode(self, job: Job, worker: Worker | None) -> Worker | None:
        """Answers one job; returns the worker for the next, None if it must be replaced."""
        worker = worker or self._new_worker()
        try:
            job.done(worker.decode(job))
            return worker
        except (OSError, EOFError):
            if not self._closed and not job.is_over():
                log.warning("a decoding worker was stopped", extra={"format": job.header.format})
            job.done(
                TooLarge(
                    f"decoding the image was stopped: it took more than {self._limits.cpu_seconds} s of CPU time, or "
                    "more memory than is allowed"
                )
            )
            self._discard(worker)
            return None

    def _new_worker(self) -> Worker:
        with self._starting:
            if self._closed:
                raise OSError("the service is stopping")
            if self._nursery is None or not self._nursery.alive:
                self._nursery = Nursery(self._limits)
            worker = self._nursery.fork()
        with self._changed:
            self._workers.add(worker)
        return worker

    def _discard(self, worker: Worker | None) -> None:
        if worker is not None:
            worker.kill()
            with self._changed:
                self._workers.discard(worker)
