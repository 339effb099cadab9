"""The image and the whole stack in a real Docker engine, where one can be reached."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import GREY, RED, make_bundle
from tests.deploy.shipped import ROOT, wait_for

pytestmark = pytest.mark.timeout(1800)  # the first build installs packages, the first start pulls images
PORTS = {"confgate": "SERVICE", "prometheus": "PROMETHEUS", "alertmanager": "ALERTMANAGER", "grafana": "GRAFANA"}


class Stack:
    """The compose project under a name and on ports of its own."""

    def __init__(self, compose: list[str], models: str) -> None:
        held = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
        self.ports = dict(zip(PORTS, (one.getsockname()[1] for one in held), strict=True))
        for one in held:
            one.close()
        self._compose = [*compose, "--project-name", f"confgate-test-{os.getpid()}"]
        self._env = {**os.environ, "MODELS_FOLDER": models}
        self._env |= {f"{PORTS[name]}_PORT": str(port) for name, port in self.ports.items()}

    def compose(self, *command: str) -> str:
        return run(*self._compose, *command, env=self._env)

    def inspect(self, service: str) -> dict[str, Any]:
        container = self.compose("ps", "--quiet", service).strip()
        return json.loads(run("docker", "inspect", container))[0]

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """`up --build` with a tiny model; everything, volumes too, is removed afterwards."""
    models = tmp_path_factory.mktemp("docker") / "models"
    make_bundle(models)
    running = Stack(compose_command(), str(models))
    try:
        running.compose("up", "--detach", "--build")
        yield running
    finally:
        running.compose("down", "--volumes")


def compose_command() -> list[str]:
    if shutil.which("docker") is None or subprocess.run(["docker", "version"], capture_output=True).returncode:
        pytest.skip("no Docker engine can be reached")
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose") is None:
        pytest.skip("there is a Docker engine, but neither `docker compose` nor docker-compose")
    return ["docker-compose"]


def run(*command: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def test_everything_becomes_healthy(stack: Stack) -> None:
    """All four containers report themselves healthy, without a restart."""
    states = {name: stack.inspect(name) for name in PORTS}

    def not_healthy() -> list[str]:
        states.update((name, stack.inspect(name)) for name in PORTS)
        return [name for name, state in states.items() if state["State"]["Health"]["Status"] != "healthy"]

    wait_for(not_healthy, timeout=300)
    assert {state["RestartCount"] for state in states.values()} == {0}


def test_the_service_answers_and_prometheus_sees_it(stack: Stack) -> None:
    """An image is answered through the published port, and Prometheus scrapes the service by its name."""
    for image, known in ((RED, True), (GREY, False)):
        answer = httpx.post(f"{stack.url('confgate')}/v1/predict", content=image, headers={"Content-Type": "image/png"})
        assert answer.json()["predictions"][0]["in_distribution"] is known
    prometheus = f"{stack.url('prometheus')}/api/v1"

    def not_seen() -> object:
        query = httpx.get(f"{prometheus}/query", params={"query": "sum(confgate_predictions_total) == 2"}).json()
        return None if query["data"]["result"] else query

    wait_for(not_seen)
    targets = httpx.get(f"{prometheus}/targets").json()["data"]["activeTargets"]
    assert "http://confgate:8000/metrics" in [target["scrapeUrl"] for target in targets]
    groups = httpx.get(f"{prometheus}/rules").json()["data"]["groups"]
    assert len(groups) == len(list((ROOT / "docker" / "prometheus" / "rules").iterdir()))
    assert httpx.get(f"{prometheus}/alertmanagers").json()["data"]["activeAlertmanagers"]


@pytest.mark.parametrize("name", PORTS)
def test_containers_are_confined(stack: Stack, name: str) -> None:
    """A container is not root, cannot write to its image, has limits, and is published on loopback only."""
    container = stack.inspect(name)
    assert container["Config"]["User"] not in ("", "0", "root")
    assert container["HostConfig"]["ReadonlyRootfs"] is True
    assert container["HostConfig"]["CapDrop"] == ["ALL"]
    assert container["HostConfig"]["Memory"] > 0
    assert container["HostConfig"]["PidsLimit"] > 0
    assert [limit["Name"] for limit in container["HostConfig"]["Ulimits"]] == ["nofile"]
    published = [binding for port in container["NetworkSettings"]["Ports"].values() for binding in port or ()]
    assert [binding["HostIp"] for binding in published] == ["127.0.0.1"]


@pytest.mark.usefixtures("stack")
def test_the_image_is_small() -> None:
    """The cpu image adds at most 350 MB to its base, and holds no torch and no installer."""
    sizes = [
        int(run("docker", "image", "inspect", "--format", "{{.Size}}", image))
        for image in ("confgate:cpu", "python:3.11-slim-bookworm")
    ]
    assert sizes[0] - sizes[1] <= 350_000_000
    listing = run(
        "docker", "run", "--rm", "--entrypoint", "ls", "confgate:cpu", "/opt/venv/lib/python3.11/site-packages"
    )
    assert "onnxruntime" in listing.split()
    assert not {"torch", "pip", "setuptools"} & set(listing.split())


def test_it_ends_when_asked(stack: Stack) -> None:
    """SIGTERM reaches the service, which drains and ends with 0 long before Docker would kill it."""
    container = stack.inspect("confgate")["Id"]
    stack.compose("stop", "confgate")
    state = json.loads(run("docker", "inspect", container))[0]["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False)
