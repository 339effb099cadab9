"""Gate changes and reloads at the same time: every loaded bundle has a gate of its own, never one of another's."""

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.model.scores import sigmoid
from tests.conftest import ADMIN, OPERATOR, RED, make_bundle
from tests.service.conftest import HeldService
from tests.service.serving.reloading import change, is_told
from tests.service.serving.test_load import wait_for

GATE = "/v1/models/colours/versions/1/gate"


@pytest.fixture
def operated(models: Path, tmp_path: Path) -> Iterator[HeldService]:
    """A service with a state folder and `colours` 1."""
    make_bundle(models)
    service = HeldService(models, state=tmp_path / "state")
    yield service
    service.stop()


class HeldSave:
    """Holds the next write of the state file in the middle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        fsync = os.fsync

        def hold(handle: int) -> None:
            if not self.entered.is_set():
                self.entered.set()
                assert self.go_on.wait(60)
            fsync(handle)

        monkeypatch.setattr(os, "fsync", hold)


def reload(service: HeldService, models: Path, **bundle: Any) -> None:
    """Puts another bundle in the place of version 1."""
    shutil.rmtree(models / "colours" / "1")
    make_bundle(models, **bundle)
    assert change(service, "load").status_code == 200


def put(service: HeldService, **body: Any) -> httpx.Response:
    return service.client.put(GATE, json=body, headers=ADMIN)


def shown(service: HeldService) -> dict[str, Any]:
    told: dict[str, Any] = service.client.get(GATE, headers=ADMIN).json()
    return told


def without_tpr95(raw: dict[str, Any]) -> None:
    policies = raw["scores"]["confidence"]["policies"]
    policies["strict"] = policies.pop("tpr95")


def with_another_tpr95(raw: dict[str, Any]) -> None:
    raw["scores"]["confidence"]["policies"]["tpr95"]["threshold"] = 5.0


class HalfSent:
    """A request whose body has arrived in part; `finish` sends the rest and returns the answer."""

    def __init__(self, service: HeldService, method: str, path: str, body: bytes) -> None:
        in_flight = service.app.state.lifecycle.in_flight
        self._body = body
        self._connection = socket.create_connection(("127.0.0.1", service.port), timeout=60)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-API-Key: {OPERATOR}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._connection.sendall(head.encode() + body[:5])
        wait_for(lambda: service.app.state.lifecycle.in_flight > in_flight)

    def finish(self) -> tuple[int, dict[str, Any]]:
        with self._connection:
            self._connection.sendall(self._body[5:])
            answer = b"".join(iter(lambda: self._connection.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)


def test_a_change_is_checked_against_the_bundle_that_is_served_when_it_is_made(
    operated: HeldService, models: Path
) -> None:
    """A policy that a reload removes while the change's body arrives is refused, and the new bundle's default stays."""
    sending = HalfSent(operated, "PUT", GATE, b'{"policy": "tpr95"}')
    reload(operated, models, change=without_tpr95)
    status, body = sending.finish()
    assert status == 400
    assert "policy 'tpr95' is unknown; score confidence has misclassified, strict" in body["detail"]
    assert (shown(operated)["policy"], shown(operated)["set_by_operator"]) == ("misclassified", False)


def told_after_a_reload_during_the_save(
    operated: HeldService,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_bundle: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """The answer to a change to tpr95. While it is saved, the bundle is replaced and loaded again."""
    with ThreadPoolExecutor(1) as pool:
        save = HeldSave(monkeypatch)
        setting = pool.submit(put, operated, policy="tpr95")
        assert save.entered.wait(60)
        reload(operated, models, change=new_bundle)
        save.go_on.set()
        told: dict[str, Any] = setting.result().json()
    return told


def test_a_reload_during_the_save_gets_the_gate_of_its_own_bundle(
    operated: HeldService, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threshold in force and in the answer is the one that the new bundle's policy has, not the old one's."""
    told = told_after_a_reload_during_the_save(operated, models, monkeypatch, with_another_tpr95)
    assert (told["policy"], told["threshold_raw"], told["ignored"]) == ("tpr95", 5.0, None)
    assert shown(operated) == told
    answer = operated.client.post("/v1/predict", content=RED).json()["predictions"][0]
    assert (answer["policy"], answer["threshold"]) == ("tpr95", float(sigmoid(5.0)))
    assert operated.metric("confgate_policy_active", policy="tpr95", score="confidence") == 1


def test_a_reload_during_the_save_that_cannot_have_the_gate_says_so(
    operated: HeldService, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the new bundle has no such policy, its default decides, and answer, route and metric say why."""
    told = told_after_a_reload_during_the_save(operated, models, monkeypatch, without_tpr95)
    assert (told["policy"], told["set_by_operator"], told["by"]) == ("misclassified", False, None)
    assert "no policy 'tpr95' any more" in told["ignored"]
    assert shown(operated) == told
    assert operated.metric("confgate_gate_ignored") == 1
    assert operated.metric("confgate_policy_active", policy="misclassified", score="confidence") == 1


def test_a_version_that_is_unloaded_during_the_save_has_the_gate_when_it_is_back(
    operated: HeldService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is saved and answered, leaves no series of the version behind, and is in force after the next load."""
    with ThreadPoolExecutor(1) as pool:
        save = HeldSave(monkeypatch)
        setting = pool.submit(put, operated, threshold=0.7)
        assert save.entered.wait(60)
        assert change(operated, "unload").status_code == 200
        wait_for(lambda: not is_told(operated, "1"))
        save.go_on.set()
        assert setting.result().json()["threshold"] == 0.7
    assert not is_told(operated, "1")
    assert change(operated, "load").status_code == 200
    assert shown(operated)["threshold"] == 0.7


def test_a_request_of_the_bundle_before_keeps_a_gate_that_it_can_compute(operated: HeldService, models: Path) -> None:
    """A request that found the old bundle is answered with its default where the new gate is on a score it lacks."""
    tensor = {"name": "image", "shape": [1, 8, 8, 3], "datatype": "UINT8", "data": [255, 0, 0] * 64}
    sending = HalfSent(operated, "POST", "/v2/models/colours/infer", json.dumps({"inputs": [tensor]}).encode())
    reload(operated, models, all_scores=True)
    assert put(operated, score="energy", policy="tpr95").status_code == 200
    status, body = sending.finish()
    assert status == 200, body
    assert (body["parameters"]["score"], body["parameters"]["policy"]) == ("confidence", "misclassified")
    assert shown(operated)["score"] == "energy"
