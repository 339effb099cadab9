"""The threads that decode images.

An executor would make a future for every image, and nothing here waits for one.
"""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

log = logging.getLogger("confgate")

Job = tuple[Callable[..., None], tuple[Any, ...]]


class DecodePool:
    """A few threads and one queue of jobs."""

    def __init__(self, threads: int) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"decode-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def size(self) -> int:
        return len(self._threads)

    def submit(self, job: Callable[..., None], *arguments: Any) -> None:
        """From any thread; the job says for itself what came of it."""
        self._jobs.put((job, arguments))

    def shutdown(self) -> None:
        """Ends the threads after the jobs that are already waiting."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, arguments = item
            try:
                job(*arguments)
            except Exception:
                # The image has been answered by now. A bad one must not end a thread that all others need.
                log.exception("a decoding job failed")
            # Not while waiting for the next one: a large image would stay in memory until then.
            del item, job, arguments
