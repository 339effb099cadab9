"""How a network shares the CPUs: threads for one batch, batches at the same time, images in a batch.

What is right depends on how long the network computes, from 0.1 ms for 32 pixels to a second, so that is measured when
a bundle is loaded. Decoding needs the same CPUs; nothing is set aside for it, the operating system shares them by need.
docs/architecture.md has the figures behind the constants.
"""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.cpus import usable_cpus
from service.model.images import Pixels
from service.model.manifest import Input
from service.model.scores import Outputs
from service.model.session import ActiveDevice, Session

# Handing a part of an image to another thread and waiting for it pays from about this much work for each thread on.
SECONDS_A_THREAD = 0.5e-3
MAX_THREADS = 8
# About what the rest of a request costs. A network that is faster than that is kept busy by one worker.
SECONDS_A_REQUEST = 0.5e-3
# On a CPU a large batch is no faster than a small one once it takes this long, and those that wait for it wait longer.
SECONDS_A_BATCH = 0.02
# Handing over costs the same for a network that computes for longer, where it no longer counts.
SECONDS_WITHOUT_OVERHEAD = 0.05
# The measurement: the fastest of a few runs, because other programs can only slow a run down.
RUNS, SECONDS_TO_MEASURE = 5, 0.1


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How the batches of one model are computed."""

    threads: int  # that compute a batch, or up to so many where others run beside it
    workers: int  # batches that are computed at the same time
    largest_batch: int  # where memory allows it


def parallelism_for(seconds: float, cpus: int, max_batch: int) -> Parallelism:
    """On so many CPUs, for a network that one thread runs in `seconds` on one image."""
    return Parallelism(
        threads=min(cpus, MAX_THREADS, max(1, int(seconds / SECONDS_A_THREAD))),
        workers=min(cpus, max(1, math.ceil(seconds / SECONDS_A_REQUEST))),
        largest_batch=min(max_batch, max(1, round(SECONDS_A_BATCH / seconds))),
    )


def parallelism_on_cuda(max_batch: int) -> Parallelism:
    """A GPU computes one batch at a time, the larger the better; the CPUs are for everything else."""
    return Parallelism(threads=max(1, usable_cpus() - 1), workers=1, largest_batch=max_batch)


def pays_by_load(parallelism: Parallelism, seconds: float) -> bool:
    """Whether batches that run beside others are better computed by a session on one thread (`ByLoad`)."""
    return min(parallelism.threads, parallelism.workers) > 1 and seconds < SECONDS_WITHOUT_OVERHEAD


class ByLoad:
    """Several threads for a batch that runs alone, and one for each of those that run at the same time.

    Threads shorten an answer, but what they hand to each other costs 5 to 15 % of the CPU time of a small network.
    """

    def __init__(self, on_many_threads: Session, on_one_thread: Session) -> None:
        self._on_many_threads, self._on_one_thread = on_many_threads, on_one_thread
        self._lock = threading.Lock()
        self._running = 0

    @property
    def device(self) -> ActiveDevice:
        return self._on_many_threads.device

    @property
    def providers(self) -> Sequence[str]:
        return self._on_many_threads.providers

    @property
    def largest_batch(self) -> int:
        return self._on_many_threads.largest_batch

    def run(self, images: Pixels) -> Outputs:
        with self._lock:
            alone = self._running == 0
            self._running += 1
        try:
            return (self._on_many_threads if alone else self._on_one_thread).run(images)
        finally:
            with self._lock:
                self._running -= 1


def seconds_of_one_image(session: Session, size: Input) -> float:
    """How long a session takes for one image."""
    image = np.zeros((1, size.height, size.width, 3), np.uint8)
    runs: list[float] = []
    while not runs or (len(runs) < RUNS and sum(runs) < SECONDS_TO_MEASURE):
        started = time.perf_counter()
        session.run(image)
        runs.append(time.perf_counter() - started)
    return min(runs)
