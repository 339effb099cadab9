"""Folders that vanish, cannot be written, or are shared: what is served goes on, and each loss is said."""

import fcntl
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ADMIN, GREY, RED, Service, make_bundle, solid
from tests.faults.processes import BareService, client_of, label, metric
from tests.service.conftest import HeldService
from tests.service.serving.test_load import wait_for

GATE = "/v1/models/colours/versions/1/gate"
# Root may write wherever it likes, except to a file system that is mounted read-only.
READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'


def read_only(folder: Path) -> tuple[str, ...]:
    """A command that starts another one for which a folder is a read-only file system."""
    through = ("unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(folder))
    try:
        tried = subprocess.run([*through, "true"], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("a read-only file system needs the command unshare")
    if tried.returncode:
        pytest.skip(f"a read-only file system cannot be mounted here: {tried.stderr.strip()}")
    return through


def refusal(service: BareService) -> str:
    """What a service that does not start says on its way out."""
    assert service.process.stderr is not None
    said = service.process.stderr.read().decode()
    service.process.stderr.close()
    assert service.process.wait(60) != 0
    return said


def test_a_models_folder_that_vanishes_and_comes_back(models: Path) -> None:
    """With --watch, what is loaded is served on while the folder is gone, and a new version is taken up when it is
    back."""
    make_bundle(models)
    service = Service(models, "--watch", "--watch-seconds", "0.05").wait_until_serving()
    with client_of(service) as client:
        away = models.rename(models.with_name("away"))
        service.wait_for_line("the models folder is gone or empty")
        assert label(client, RED) == "red"
        make_bundle(away, version=2)
        away.rename(models)
        service.wait_for_line('"version":2')
        assert label(client, RED) == "red"
        assert client.get("/v2/health/ready").status_code == 200
    assert service.stop() == 0
    assert not any(line["level"] == "error" for line in service.log())


def test_a_read_only_models_folder_is_enough(models: Path) -> None:
    """The service writes nothing into its models folder."""
    make_bundle(models)
    with BareService(models, through=read_only(models)) as service, client_of(service.wait_until_ready()) as client:
        assert label(client, RED) == "red"
        assert service.stop() == 0


@pytest.mark.parametrize("setting", ["state", "capture_dir"])
def test_a_folder_on_a_read_only_file_system_stops_the_start(models: Path, tmp_path: Path, setting: str) -> None:
    """A state or capture folder that cannot be written is named at the start, with its setting."""
    make_bundle(models)
    (folder := tmp_path / "folder").mkdir()
    flags = (f"--{setting.replace('_', '-')}", str(folder))
    with BareService(models, *flags, through=read_only(folder), stderr=subprocess.PIPE) as service:
        assert f"confgate: {setting}: '{folder}' is not allowed" in refusal(service)


def test_a_file_in_place_of_the_state_folder_stops_the_start(models: Path, tmp_path: Path) -> None:
    """A path that cannot become a folder is named at the start, with its setting."""
    make_bundle(models)
    (tmp_path / "state").write_text("no folder")
    message = Service(models, "--state", str(tmp_path / "state")).wait_until_refused()
    assert f"confgate: state: '{tmp_path / 'state'}' is not allowed" in message
    assert "Traceback" not in message


def test_a_capture_folder_that_is_lost_costs_captures_and_no_answers(models: Path, tmp_path: Path) -> None:
    """While nothing can be written to the capture folder, requests are answered and each loss is counted; when it can
    be, images are kept again."""
    make_bundle(models)
    folder = tmp_path / "kept"
    service = Service(models, "--capture-dir", str(folder), "--capture-rate", "1").wait_until_serving()
    with client_of(service) as client:
        lost = 'confgate_capture_dropped_total{reason="error"}'
        folder.rename(tmp_path / "away")
        folder.write_text("no folder")
        assert label(client, GREY)
        assert label(client, solid((90, 90, 90)))
        wait_for(lambda: metric(client, lost) == 2)
        assert client.get("/v2/health/ready").status_code == 200
        folder.unlink()
        folder.mkdir()
        assert label(client, GREY)
        wait_for(lambda: metric(client, "confgate_capture_images") == 1)
    assert service.stop() == 0
    assert sum("could not be kept" in line["message"] for line in service.log()) == 1


def test_two_services_on_one_state_folder_lose_nothing(models: Path, tmp_path: Path) -> None:
    """The second to change a gate is told so and changes nothing; what the first one set is on disk, and in force in
    both after a restart."""
    make_bundle(models)
    state = tmp_path / "state"
    first, second = (HeldService(models, state=state) for _ in range(2))
    try:
        assert first.client.put(GATE, json={"policy": "tpr95"}, headers=ADMIN).status_code == 200
        refused = second.client.put(GATE, json={"threshold": 0.7}, headers=ADMIN)
        assert refused.status_code == 500
        assert "written by somebody else" in refused.json()["detail"]
        assert json.loads((state / "gates.json").read_text())["gates"][0]["gate"]["policy"] == "tpr95"
    finally:
        first.stop()
        second.stop()
    again = HeldService(models, state=state)
    try:
        assert again.client.get(GATE, headers=ADMIN).json()["policy"] == "tpr95"
    finally:
        again.stop()


def test_two_services_that_write_at_the_same_time_do_not_overwrite_each_other(models: Path, tmp_path: Path) -> None:
    """While another service writes the state, a change is refused and not made; afterwards it is possible."""
    make_bundle(models)
    state = tmp_path / "state"
    service = HeldService(models, state=state)
    other = os.open(state, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused = service.client.put(GATE, json={"policy": "tpr95"}, headers=ADMIN)
        assert refused.status_code == 500
        assert "another service is writing" in refused.json()["detail"]
        assert not (state / "gates.json").exists()
        fcntl.flock(other, fcntl.LOCK_UN)
        assert service.client.put(GATE, json={"policy": "tpr95"}, headers=ADMIN).status_code == 200
    finally:
        os.close(other)
        service.stop()
