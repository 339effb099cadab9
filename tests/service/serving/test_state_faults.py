"""Disks that fail in the middle of a gate change: the answer is true, and no restart applies a change that failed."""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ADMIN, make_bundle
from tests.service.conftest import HeldService

GATE = "/v1/models/colours/versions/1/gate"


class Disk:
    """The steps of a save, `file` and `folder` (both fsync) and `rename`, of which a test makes some fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails: dict[str, list[bool]] = {}  # whether the next calls fail; those after them do not
        fsync, replace = os.fsync, os.replace

        def failing_fsync(handle: int) -> None:
            self._step("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
            fsync(handle)

        def failing_replace(source: Any, target: Any) -> None:
            self._step("rename")
            replace(source, target)

        monkeypatch.setattr(os, "fsync", failing_fsync)
        monkeypatch.setattr(os, "replace", failing_replace)

    def _step(self, name: str) -> None:
        if self.fails.get(name) and self.fails[name].pop(0):
            raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


Start = Callable[[], HeldService]


@pytest.fixture
def start(models: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a service with the same models and state as the one before, which it stops."""
    make_bundle(models)
    running: list[HeldService] = []

    def restart() -> HeldService:
        while running:
            running.pop().stop()
        running.append(HeldService(models, state=tmp_path / "state"))
        return running[0]

    yield restart
    running.pop().stop()


def put(service: HeldService, **body: Any) -> httpx.Response:
    return service.client.put(GATE, json=body, headers=ADMIN)


def reset(service: HeldService) -> httpx.Response:
    return service.client.delete(GATE, headers=ADMIN)


def policy(service: HeldService) -> str:
    told: str = service.client.get(GATE, headers=ADMIN).json()["policy"]
    return told


def changes(service: HeldService) -> int:
    return len(service.client.get("/v1/gates/history", headers=ADMIN).json()["changes"])


@pytest.mark.parametrize("before", ["misclassified", "tpr95"])
@pytest.mark.parametrize("step", ["file", "rename", "folder"])
def test_a_change_that_fails_is_not_applied_by_a_restart(start: Start, disk: Disk, step: str, before: str) -> None:
    """Whichever step of a save fails: 500 that says nothing was changed, and the old gate now and after a restart."""
    service = start()
    if before == "tpr95":
        assert put(service, policy="tpr95").status_code == 200
    kept = changes(service)
    disk.fails = {step: [True]}
    refused = put(service, threshold=0.7)
    assert (refused.status_code, refused.json()["type"]) == (500, "urn:confgate:problem:state-not-saved")
    assert "Input/output error" in refused.json()["detail"]
    assert refused.json()["detail"].endswith("nothing was changed")
    assert (policy(service), changes(service)) == (before, kept)
    service = start()
    assert (policy(service), changes(service)) == (before, kept)
    assert put(service, threshold=0.7).status_code == 200
    assert policy(start()) == "custom"


@pytest.mark.parametrize("undoing", [{"folder": [True, True]}, {"folder": [True], "rename": [False, True]}])
def test_a_change_that_cannot_be_undone_is_said(
    start: Start, disk: Disk, tmp_path: Path, undoing: dict[str, list[bool]], caplog: pytest.LogCaptureFixture
) -> None:
    """Where the old file cannot be put back either, answer and log say so, the old gate decides, and each change is
    refused until the file can be written; then the file holds what was answered."""
    service = start()
    assert put(service, policy="tpr95").status_code == 200
    disk.fails = undoing
    refused = put(service, threshold=0.7)
    assert refused.status_code == 500
    assert "a restart might apply it" in refused.json()["detail"]
    assert "nothing was changed" not in refused.json()["detail"]
    assert [record.levelname for record in caplog.records if "may be in the state file" in record.message] == ["ERROR"]
    assert policy(service) == "tpr95"
    disk.fails = {"file": [True, True]}
    refused = put(service, threshold=0.8)
    assert refused.status_code == 500
    assert "a restart might apply it" in refused.json()["detail"]
    disk.fails = {"file": [True]}
    assert put(service, threshold=0.8).json()["detail"].endswith("put back as it was, and nothing was changed")
    (setting,) = json.loads((tmp_path / "state" / "gates.json").read_text())["gates"]
    assert setting["gate"]["policy"] == "tpr95"
    assert put(service, threshold=0.9).status_code == 200
    service = start()
    assert service.client.get(GATE, headers=ADMIN).json()["threshold"] == 0.9


def test_a_reset_removes_what_a_failed_change_left(start: Start, disk: Disk, tmp_path: Path) -> None:
    """Also where no gate is set, a reset that is answered with 204 leaves no failed change on the disk."""
    service = start()
    disk.fails = {"folder": [True, True]}
    assert "a restart might apply it" in put(service, threshold=0.7).json()["detail"]
    disk.fails = {"folder": [True]}
    refused = reset(service)
    assert refused.status_code == 500
    assert "a restart might apply it" in refused.json()["detail"]
    assert reset(service).status_code == 204
    assert not (tmp_path / "state" / "gates.json").exists()
    assert policy(start()) == "misclassified"


def test_a_state_file_that_cannot_be_read_refuses_the_change(start: Start, tmp_path: Path) -> None:
    """A file that becomes unreadable while the service runs is an answer with the reason, not an internal error."""
    service = start()
    (tmp_path / "state" / "gates.json").mkdir()
    refused = put(service, threshold=0.7)
    assert (refused.status_code, refused.json()["type"]) == (500, "urn:confgate:problem:state-not-saved")
    assert refused.json()["detail"].endswith("cannot be read: Is a directory; nothing was changed")
    (tmp_path / "state" / "gates.json").rmdir()
    assert put(service, threshold=0.7).status_code == 200
