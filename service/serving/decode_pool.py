"""The threads that decode images.

An executor would make a future for every image, and nothing here waits for one.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

log = logging.getLogger("confgate")

Job = tuple[Callable[..., None], tuple[Any, ...]]


# Of five jobs, one is of a request with many images, if any waits.
SINGLES_IN_A_ROW = 4


class DecodePool:
    """A few threads, and the jobs that wait for them: those of requests with one image mostly go first."""

    def __init__(self, threads: int) -> None:
        self._waiting: SimpleQueue[bool] = SimpleQueue()  # True for each job, False to end a thread
        self._lock = threading.Lock()
        self._single: deque[Job] = deque()
        self._bulk: deque[Job] = deque()
        self._in_a_row = 0
        self._threads = [threading.Thread(target=self._run, name=f"decode-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def size(self) -> int:
        return len(self._threads)

    def submit(self, job: Callable[..., None], *arguments: Any, bulk: bool = False) -> None:
        """From any thread; the job says for itself what came of it. `bulk`: its request has many images."""
        (self._bulk if bulk else self._single).append((job, arguments))
        self._waiting.put(True)

    def shutdown(self) -> None:
        """Ends the threads after the jobs that are already waiting."""
        for _ in self._threads:
            self._waiting.put(False)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while self._waiting.get():
            job, arguments = self._take()
            try:
                job(*arguments)
            except Exception:
                # The image has been answered by now. A bad one must not end a thread that all others need.
                log.exception("a decoding job failed")
            # Not while waiting for the next one: a large image would stay in memory until then.
            del job, arguments

    def _take(self) -> Job:
        with self._lock:
            if self._bulk and (not self._single or self._in_a_row >= SINGLES_IN_A_ROW):
                self._in_a_row = 0
                return self._bulk.popleft()
            self._in_a_row += 1
            return self._single.popleft()
