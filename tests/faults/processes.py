"""Services whose surroundings a test spoils, and the processes they start."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx

from tests.conftest import ROOT, Service
from tests.service.serving.test_load import wait_for

PNG = {"Content-Type": "image/png"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class BareService:
    """`confgate serve` on a port that is known before, because its log may go nowhere.

    `through` is a command that starts it, with limits or closed streams. Used as a context: leaving it kills it.
    """

    def __init__(
        self,
        models: Path,
        *flags: str,
        stderr: int = subprocess.DEVNULL,
        through: Sequence[str] = (),
        port: int | None = None,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        serve = (sys.executable, "-m", "service", "serve", "--port", str(self.port), "--metrics-cache-ms", "0")
        self.process = subprocess.Popen(
            [*through, *serve, "--models", str(models), *flags],
            cwd=ROOT,
            env={**os.environ, "CONFGATE_DEVICE": "cpu"},
            stderr=stderr,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(60)

    def wait_until_ready(self) -> Self:
        wait_for(lambda: self.process.poll() is not None or self._is_ready())
        assert self.process.poll() is None
        return self

    def stop(self, how: signal.Signals = signal.SIGTERM, seconds: float = 60) -> int:
        self.process.send_signal(how)
        return self.process.wait(seconds)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/v2/health/ready", trust_env=False, timeout=60).status_code == 200
        except httpx.TransportError:
            return False


def client_of(service: Service | BareService) -> httpx.Client:
    return httpx.Client(base_url=service.url, timeout=60, verify=False, trust_env=False)


def connect(service: Service | BareService, send: bytes = b"") -> socket.socket:
    address = urlsplit(service.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=60)
    connection.sendall(send)
    return connection


def post(client: httpx.Client, image: bytes) -> httpx.Response:
    return client.post("/v1/predict", content=image, headers=PNG)


def label(client: httpx.Client, image: bytes) -> str:
    """What the service takes a good image for."""
    response = post(client, image)
    assert response.status_code == 200, response.text
    return str(response.json()["predictions"][0]["label"])


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")))


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that these started."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if (fields := _status(int(folder.name))) is not None:
            parents[int(folder.name)] = int(fields[1])
    found, look = [], [pid]
    while look:
        parent = look.pop()
        children = [child for child, its_parent in parents.items() if its_parent == parent]
        found += children
        look += children
    return found


def cpu_seconds(pid: int) -> float:
    fields = _status(pid)
    assert fields is not None
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def has_ended(pid: int) -> bool:
    """A zombie has ended too: nobody may be there to reap it."""
    fields = _status(pid)
    return fields is None or fields[0] == "Z"


def _status(pid: int) -> list[str] | None:
    """State, parent and more, without the name, which may have spaces."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
