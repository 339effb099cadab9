"""The processes that decode large images, with limits on CPU time and memory.

`python -m service.serving.decode_worker` imports what decoding needs and then forks a worker for each socket that it is
handed: a fork takes milliseconds and shares memory, unlike a new interpreter. A worker answers one job after the
other until its socket is closed. A job that exceeds a limit costs a worker, and nothing else.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from pathlib import Path

from service.errors import RequestError, TooLarge
from service.model.headers import read_header
from service.model.images import Pixels, decode, shrink
from service.model.manifest import Input

JOB = struct.Struct("!IQ")  # bytes of JSON, bytes of the image file
REPLY = struct.Struct("!BII")  # PIXELS with height and width, or an error with the bytes of its text
PIXELS, INVALID, TOO_LARGE = 0, 1, 2
PID = struct.Struct("!I")
STATM = Path("/proc/self/statm")  # where the system has it: pages that this process has mapped
NICENESS = 10  # answering requests goes first
# Where memory runs out the kernel ends a worker, and not the service.
OOM_SCORE = Path("/proc/self/oom_score_adj")
# Beside the image itself: the interpreter's own allocations.
SPARE_BYTES = 256_000_000


def main(control: int, memory_bytes: int, cpu_seconds: int) -> None:
    """Forks a worker for each socket that comes over the control socket, until that is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps workers
    with socket.socket(fileno=control) as sockets:
        while True:
            message, descriptors, _, _ = socket.recv_fds(sockets, 1, 1)
            if not message:
                return
            if os.fork() == 0:
                sockets.close()
                with socket.socket(fileno=descriptors[0]) as jobs, contextlib.suppress(ConnectionError):
                    work(jobs, memory_bytes, cpu_seconds)  # until the service ends, perhaps in the middle of an answer
                os._exit(0)
            os.close(descriptors[0])


def work(jobs: socket.socket, memory_bytes: int, cpu_seconds: int) -> None:
    """Answers jobs until the socket is closed. SIGXCPU ends the process if one takes too much CPU time."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        OOM_SCORE.write_text("1000")
    if STATM.exists():
        mapped = int(STATM.read_text().split()[0]) * resource.getpagesize()
        limit = mapped + memory_bytes + SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    jobs.sendall(PID.pack(os.getpid()))
    while head := read_exactly(jobs, JOB.size):
        json_bytes, file_bytes = JOB.unpack(head)
        options = json.loads(read_exactly(jobs, json_bytes))
        encoded = bytes(read_exactly(jobs, file_bytes))
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + cpu_seconds, hard))
        jobs.sendall(answer(options, encoded))
        del encoded


def answer(options: dict[str, object], encoded: bytes) -> bytes:
    """The reply to one job."""
    try:
        pixels = _pixels(options, encoded)
    except TooLarge as error:
        return _refusal(TOO_LARGE, error.detail)
    except RequestError as error:
        return _refusal(INVALID, error.detail)
    except MemoryError:
        return _refusal(TOO_LARGE, "decoding the image takes more memory than is allowed")
    return REPLY.pack(PIXELS, *pixels.shape[:2]) + pixels.tobytes()


def _pixels(options: dict[str, object], encoded: bytes) -> Pixels:
    max_pixels, side, header = options["max_pixels"], options.get("side"), read_header(encoded)
    assert isinstance(max_pixels, int)
    if isinstance(side, int):
        return shrink(encoded, side, max_pixels, header)
    return decode(encoded, Input.model_validate(options["target"]), max_pixels, header)


def _refusal(kind: int, detail: str) -> bytes:
    text = detail.encode()
    return REPLY.pack(kind, len(text), 0) + text


def read_exactly(connection: socket.socket, size: int) -> bytearray:
    """That many bytes; none if the connection was closed."""
    content = bytearray(size)
    view, read = memoryview(content), 0
    while read < size:
        got = connection.recv_into(view[read:])
        if not got:
            return bytearray()
        read += got
    return content


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
