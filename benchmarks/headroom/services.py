"""One service per checkout and image size, alone on a CPU, with a session that returns at once."""

import http.client
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.headroom.requests import MODEL, Request
from benchmarks.serving.load import LoadError, wait_until_ready, wrk
from benchmarks.serving.processes import cpu_seconds, free_port, resumed, running, suspend
from benchmarks.serving.servers import ROOT

SCRIPT = Path(__file__).with_name("instant_service.py")
# Its scores and policies are those of a usual model; its graphs are never opened.
PATTERN = ROOT / "models" / "cifar10" / "5"
# So many that no request is refused: 32 requests with 32 images each, and a reserve.
QUEUE = 2048
READY = "/v2/health/ready"
REQUEST_ID = "headroom"  # given, so that equal answers are equal byte by byte


@dataclass(frozen=True)
class CPUs:
    """The CPU of the service, and that of wrk."""

    service: int
    client: int


def take_cpus() -> CPUs:
    """Leaves one CPU to the service; this process, and wrk which it starts, stay on another one."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise LoadError("only one CPU is usable: the service needs one, and wrk another one")
    cpus = CPUs(*usable[:2])
    os.sched_setaffinity(0, {cpus.client})
    return cpus


def bundle_of(side: int, cache: Path) -> Path:
    """The folder CACHE/SIDE with one bundle for images of that size: the shipped one under another name."""
    models = cache / str(side)
    folder = models / MODEL / "1"
    raw = json.loads((PATTERN / "bundle.json").read_text())
    raw |= {"name": MODEL, "version": 1}
    raw["input"] |= {"width": side, "height": side}
    folder.mkdir(parents=True, exist_ok=True)
    for file in PATTERN.iterdir():
        shutil.copyfile(file, folder / file.name)
    (folder / "bundle.json").write_text(json.dumps(raw))
    return models


@dataclass(frozen=True)
class Result:
    """What one run of wrk measured."""

    images_per_second: float
    per_core: float  # images per second of the service's CPU time
    p50_ms: float


@dataclass(frozen=True)
class Service:
    """A service that is up; it is suspended unless it is measured."""

    checkout: Path
    process: int
    port: int
    folder: Path

    def measure(self, request: Request, concurrency: int, seconds: int) -> Result:
        """Drives the service with wrk; raises if a request fails."""
        body = self.folder / "body"
        body.write_bytes(request.body)
        url = f"http://127.0.0.1:{self.port}{request.path}"
        with resumed(self.process):
            before = cpu_seconds(self.process)
            figures = wrk(url, {**request.headers, "Content-Type": request.content_type}, body, concurrency, seconds)
            spent = cpu_seconds(self.process) - before
        if errors := sum(figures["errors"].values()):
            raise LoadError(f"{request.name}: {errors} errors in {figures['requests']} requests")
        images = figures["requests"] * request.images
        return Result(images / figures["seconds"], images / spent, figures["p50_ms"])

    def answer(self, request: Request) -> bytes:
        """The answer to one request; raises unless it is a 200."""
        headers = {**request.headers, "Content-Type": request.content_type, "X-Request-Id": REQUEST_ID}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with resumed(self.process):
            connection.request("POST", request.path, request.body, headers)
            response = connection.getresponse()
            body = response.read()
        connection.close()
        if response.status != 200:
            raise LoadError(f"{request.name}: answered {response.status} {body[:300]!r}")
        return body


@contextmanager
def started(checkout: Path, side: int, cpus: CPUs, cache: Path, place: int = 0) -> Iterator[Service]:
    """The service of a checkout, suspended; `place` tells those that take turns apart."""
    folder = cache / f"service-{place}-{side}"
    folder.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), folder / "server.log"
    flags = ("--models", str(bundle_of(side, cache)), "--port", str(port), "--max-queue-images", str(QUEUE))
    command = ["taskset", "-c", str(cpus.service), sys.executable, str(SCRIPT), *flags]
    with running(command, {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}, folder, log) as process:
        wait_until_ready(process, port, READY, log)
        suspend(process.pid)
        yield Service(checkout, process.pid, port, folder)
