"""The service's side of a worker process that decodes (`decode_worker` is the other): start, ask, kill."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic_core import to_json

import service
from service.errors import InvalidImage, RequestError, TooLarge
from service.model.headers import Header
from service.model.images import Pixels, needed_side
from service.model.manifest import Input
from service.serving.budgets import LOOK_SECONDS
from service.serving.decode_worker import INVALID, JOB, PID, PIXELS, REPLY, read_exactly

# A worker whose request is over may finish a job that takes no longer: to replace a worker takes as long.
GRACE_SECONDS = 0.5
START_SECONDS = 30.0
# Memory of a large image goes back to the system when it is freed.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}


class WorkerLimits(NamedTuple):
    """What one job may take."""

    memory_bytes: int
    cpu_seconds: int


@dataclass(slots=True, eq=False)
class Job:
    """One image for a worker. With `side` it is shrunk to that side, otherwise made the input of `target`."""

    encoded: bytes
    header: Header
    max_pixels: int
    done: Callable[[Pixels | RequestError], None]
    is_over: Callable[[], bool]
    target: Input | None = None
    side: int | None = None
    seconds: float = 0.0  # about how long it takes
    memory_bytes: int = 0  # about how much memory

    def __post_init__(self) -> None:
        self.seconds = self.header.decode_seconds
        wanted = self.target if self.side is None else self.side
        self.memory_bytes = self.header.decode_bytes(None if wanted is None else needed_side(wanted))


class Nursery:
    """The process that forks workers."""

    def __init__(self, limits: WorkerLimits) -> None:
        ours, theirs = socket.socketpair()
        packages = str(Path(service.__file__).parents[1])
        path = os.pathsep.join(filter(None, (packages, os.environ.get("PYTHONPATH"))))
        with theirs:
            command = [sys.executable, "-m", "service.serving.decode_worker", str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*command, str(limits.memory_bytes), str(limits.cpu_seconds)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": path, **ENVIRONMENT},
                start_new_session=True,  # Ctrl-C is for the service, which ends its workers itself
            )
        self._socket = ours

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(self) -> "Worker":
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [b"."], [theirs.fileno()])
        ours.settimeout(START_SECONDS)
        head = read_exactly(ours, PID.size)
        if not head:
            ours.close()
            raise OSError("the worker did not start")
        ours.settimeout(None)
        return Worker(ours, PID.unpack(head)[0])

    def close(self) -> None:
        self._socket.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Worker:
    """One worker process, and the socket to it."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self._pid = pid
        self._killed = False

    def decode(self, job: Job) -> Pixels | RequestError:
        """The pixels or the error of one image; OSError or EOFError if the worker died or was killed."""
        options = {"max_pixels": job.max_pixels, "target": job.target and job.target.model_dump(), "side": job.side}
        text = to_json(options)
        self._connection.sendall(JOB.pack(len(text), len(job.encoded)) + text)
        self._connection.sendall(job.encoded)
        self._wait(job)
        head = read_exactly(self._connection, REPLY.size)
        if not head:
            raise EOFError
        kind, first, second = REPLY.unpack(head)
        if kind == PIXELS:
            content = read_exactly(self._connection, first * second * 3)
            return np.frombuffer(content, np.uint8).reshape(first, second, 3)
        detail = read_exactly(self._connection, first).decode()
        return InvalidImage(detail) if kind == INVALID else TooLarge(detail)

    def _wait(self, job: Job) -> None:
        started = time.monotonic()
        while not select.select([self._connection], [], [], LOOK_SECONDS)[0]:
            if job.is_over() and time.monotonic() - started > GRACE_SECONDS:
                self.kill()
                raise EOFError

    def kill(self) -> None:
        if not self._killed:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):  # it may have died by itself, of a limit
                os.kill(self._pid, signal.SIGKILL)
            self._connection.close()
