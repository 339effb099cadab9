"""Ends a process that is told to end and does not: a thread may compute or wait for as long as it likes.

A graph can loop for ever, and Python cannot stop a thread.
"""

import logging
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from queue import SimpleQueue

from service.logs import flush_logs
from service.serving.lifecycle import Lifecycle

log = logging.getLogger("confgate")

# Before the deadline, for the last words.
LOG_SECONDS = 0.2


class Watchdog:
    """A thread that waits for a deadline, and then for nothing else."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        # A queue, because it is filled by a signal handler, which must not take a lock or start a thread.
        self._deadlines: SimpleQueue[float] = SimpleQueue()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def end_by(self, deadline: float) -> None:
        """Whatever runs then is ended, on the clock of time.monotonic(). The first call counts."""
        self._deadlines.put(deadline)

    def _watch(self) -> None:
        time.sleep(max(0.0, self._deadlines.get() - LOG_SECONDS - time.monotonic()))
        in_flight = self._lifecycle.in_flight
        log.error(
            "the time to drain is over and something still runs: the process is ended",
            extra={"requests_in_flight": in_flight, "threads": _running()},
        )
        flush_logs(LOG_SECONDS / 2)
        answered = self._lifecycle.draining and not (self._lifecycle.cut_off or in_flight)
        os._exit(0 if answered else 1)


def _running() -> dict[str, str]:
    """For each thread the line that it is at."""
    frames = sys._current_frames()
    places = {}
    for thread in threading.enumerate():
        if thread.ident in frames and thread is not threading.current_thread():
            place = traceback.extract_stack(frames[thread.ident], limit=1)[0]
            places[thread.name] = f"{Path(place.filename).name}:{place.lineno} {place.line}"
    return places
