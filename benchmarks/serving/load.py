"""One measurement: wrk drives a server in a closed loop, and /proc tells the CPU time and memory it took."""

import http.client
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.serving.processes import cpu_seconds, resident_bytes

SCRIPT = Path(__file__).with_name("closed_loop.lua")


class LoadError(Exception):
    """wrk could not be run, or a server gave a wrong answer or none."""


@dataclass(frozen=True)
class Result:
    """What one run of wrk measured."""

    concurrency: int
    images_per_request: int
    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    cpu_seconds: float
    resident_mb: float
    errors: int

    @property
    def images_per_second(self) -> float:
        return self.requests * self.images_per_request / self.seconds

    @property
    def cpu_per_1000(self) -> float:
        return 1000 * self.cpu_seconds / max(1, self.requests * self.images_per_request)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "images_per_second": self.images_per_second, "cpu_per_1000": self.cpu_per_1000}


def wrk_program() -> str:
    """The path of wrk, the load generator."""
    program = shutil.which("wrk")
    if program is None:
        raise LoadError("wrk is not installed. Install the package wrk (Debian, Fedora, Homebrew)")
    return program


def wrk(url: str, headers: Mapping[str, str], body: Path, concurrency: int, seconds: int) -> dict[str, Any]:
    """Runs wrk against one URL; returns what closed_loop.lua prints."""
    command = [wrk_program(), "-t1", f"-c{concurrency}", f"-d{seconds}s", "--timeout", "30s", "-s", str(SCRIPT), url]
    others = [part for name, value in headers.items() if name != "Content-Type" for part in (name, value)]
    command += ["--", headers["Content-Type"], str(body), *others]
    outcome = subprocess.run(command, capture_output=True, text=True)
    line = next((text for text in outcome.stdout.splitlines() if text.startswith("RESULT ")), None)
    if outcome.returncode or line is None:
        raise LoadError(f"wrk failed: {outcome.stdout}{outcome.stderr}")
    figures: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return figures


def drive(
    process: int, url: str, content_type: str, body: Path, concurrency: int, seconds: int, images: int = 1
) -> Result:
    """Runs wrk against one URL. The CPU time is that of the server's processes, without the client."""
    before = cpu_seconds(process)
    figures = wrk(url, {"Content-Type": content_type}, body, concurrency, seconds)
    spent = cpu_seconds(process) - before
    return Result(
        concurrency=concurrency,
        images_per_request=images,
        requests=figures["requests"],
        seconds=figures["seconds"],
        p50_ms=figures["p50_ms"],
        p99_ms=figures["p99_ms"],
        cpu_seconds=spent,
        resident_mb=resident_bytes(process) / 1e6,
        errors=sum(figures["errors"].values()),
    )


def ask(
    port: int,
    method: str,
    path: str,
    body: bytes = b"",
    content_type: str = "",
    timeout: float = 60,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Sends one request outside the measurements; returns status and body."""
    typed = {"Content-Type": content_type} if content_type else {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body or None, {**typed, **headers})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def wait_until_ready(process: subprocess.Popen[bytes], port: int, path: str, log: Path, seconds: float = 120) -> None:
    """Polls a path until it answers 200; raises with the end of the log if the server does not get there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            if ask(port, "GET", path, timeout=2)[0] == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.1)
    raise LoadError(f"the server did not become ready; its log ends: {log.read_text(errors='replace')[-1500:]}")


class Prober:
    """Requests one path repeatedly on a connection of its own, and records how long each answer took."""

    def __init__(self, port: int, path: str, pause: float = 0.02) -> None:
        self.milliseconds: list[float] = []
        self.failures: list[str] = []
        self._port, self._path, self._pause = port, path, pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Prober":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        while not self._stop.wait(self._pause):
            started = time.perf_counter()
            try:
                connection.request("GET", self._path)
                response = connection.getresponse()
                response.read()
                if response.status != 200:
                    self.failures.append(f"status {response.status}")
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
            self.milliseconds.append(1000 * (time.perf_counter() - started))
        connection.close()
