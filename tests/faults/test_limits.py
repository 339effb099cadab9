"""Limits from outside: descriptors and memory run out, and the service still answers."""

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from service.memory import CGROUP
from tests.conftest import RED, make_bundle
from tests.costly_files import slow_png, wide_webp
from tests.faults.processes import BareService, client_of, connect, label, post

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
# Where the kernel's two versions of cgroups have the limit of memory and its use.
MEMORY_FILES = (
    (CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    (CGROUP, "memory.max", "memory.current"),
)
SPARE_BYTES = 50_000_000


def test_without_free_descriptors_large_images_are_still_decoded(models: Path) -> None:
    """With `ulimit -n 64` and more connections than that allows, a large image, which needs a new
    process, is answered."""
    make_bundle(models)
    few = ("sh", "-c", 'ulimit -n 64 && exec "$@"', "sh")
    with BareService(models, through=few) as service, contextlib.ExitStack() as connections:
        service.wait_until_ready()
        for _ in range(40):
            connections.enter_context(connect(service, LIVE))
        with client_of(service) as client:
            assert label(client, slow_png())
            assert label(client, RED) == "red"
            assert service.stop() == 0


class MemoryGroup:
    """A cgroup with a limit of memory."""

    def __init__(self, folder: Path, limit: str, usage: str) -> None:
        self.folder = folder
        self._limit, self._usage = folder / limit, folder / usage

    def add(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def leave(self, spare: int) -> None:
        """From now on so many bytes are left."""
        self._limit.write_text(str(int(self._usage.read_text()) + spare))


@pytest.fixture
def memory_group() -> Iterator[MemoryGroup]:
    for root, limit, usage in MEMORY_FILES:
        folder = root / f"confgate-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / limit).exists():
                yield MemoryGroup(folder, limit, usage)
                folder.rmdir()
                return
            folder.rmdir()
    pytest.skip("no cgroup with a limit of memory can be made here: that needs root and the memory controller")


def test_where_memory_runs_out_a_worker_ends_and_the_service_goes_on(models: Path, memory_group: MemoryGroup) -> None:
    """Under a limit of memory that large images exceed, those get an answer or an error, and small ones are answered as
    ever: the kernel ends processes that decode, not the service."""
    make_bundle(models)
    with BareService(models) as service:
        memory_group.add(service.process.pid)
        with client_of(service.wait_until_ready()) as client, ThreadPoolExecutor(4) as pool:
            assert label(client, slow_png())  # starts the processes that decode
            memory_group.leave(SPARE_BYTES)
            statuses = {answer.status_code for answer in pool.map(lambda _: _large(client), range(8))}
            assert statuses <= {200, 413, 429, 500}
            assert 413 in statuses
            assert label(client, RED) == "red"
            assert service.stop() == 0


def _large(client: httpx.Client) -> httpx.Response:
    return post(client, wide_webp())
