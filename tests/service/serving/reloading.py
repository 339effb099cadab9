"""What the tests of loading and unloading share: the calls of an administrator, and a load that can be held up."""

import threading
from typing import Any

import httpx

from service.model.bundle import Bundle, GraphName
from service.model.session import Device
from tests.conftest import ADMIN, RED
from tests.service.conftest import HeldService, HeldSession


def change(service: HeldService, action: str, model: str = "colours", **parameters: Any) -> httpx.Response:
    body = {"parameters": parameters} if parameters else None
    return service.client.post(f"/v2/repository/models/{model}/{action}", json=body, headers=ADMIN)


def index(service: HeldService, **body: Any) -> dict[tuple[str, str], tuple[str, str]]:
    answer = service.client.post("/v2/repository/index", json=body, headers=ADMIN)
    return {(item["name"], item["version"]): (item["state"], item["reason"]) for item in answer.json()}


def version_of(service: HeldService, **query: Any) -> int:
    answer = service.client.post("/v1/predict", content=RED, params=query)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["version"])


def is_told(service: HeldService, version: str) -> bool:
    """Whether Prometheus is told anything of a version of `colours`."""
    return f'model="colours",version="{version}"' in service.client.get("/metrics").text


def threads_of(version: int) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(f"colours-{version}-")]


class SlowOpening:
    """Makes a service wait for `go_on` before it opens a graph, and counts how many it opened."""

    def __init__(self, service: HeldService) -> None:
        self.entered, self.go_on, self.opened = threading.Semaphore(0), threading.Event(), 0
        self._open = service.app.state.opener._open_session
        service.app.state.opener._open_session = self

    def __call__(
        self, bundle: Bundle, graph: GraphName, device: Device, threads: int, max_batch: int, batch_bytes: int
    ) -> HeldSession:
        self.opened += 1
        self.entered.release()
        assert self.go_on.wait(60)
        session: HeldSession = self._open(bundle, graph, device, threads, max_batch, batch_bytes)
        return session
