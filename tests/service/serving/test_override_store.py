"""What operators have set, across restarts: kept, restored, refused where damaged, said where it no longer fits."""

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.errors import StateError
from service.serving.override_store import StateFile
from service.web.keys import new_key
from tests.conftest import RED, BundleFolder, Service, graph_bytes, make_bundle
from tests.service.conftest import HeldService

PNG = {"Content-Type": "image/png"}
OPS, OPS_LINE = new_key("ops", "admin")
ADMIN = {"Authorization": f"Bearer {OPS}"}
GATE = "/v1/models/colours/versions/1/gate"
KEYS = {"api_keys": OPS_LINE}


def serve(models: Path, state: Path) -> tuple[Service, httpx.Client]:
    running = Service(models, "--state", str(state), env={"CONFGATE_API_KEYS": OPS_LINE}).wait_until_serving()
    return running, httpx.Client(base_url=running.url, headers=ADMIN, timeout=30, verify=False, trust_env=False)


def test_after_sigkill_the_same_models_and_thresholds_are_back(models: Path, tmp_path: Path) -> None:
    """Killed right after a change is answered and started again, a service is ready with the same gates."""
    make_bundle(models)
    make_bundle(models, version=2, perturbed=False)
    running, client = serve(models, tmp_path / "state")
    with client:
        assert client.put(GATE, json={"threshold": 0.999, "note": "a\nb"}).status_code == 200
        assert client.put(GATE.replace("/1/", "/2/"), json={"policy": "tpr95"}).status_code == 200
        before = client.get("/v1/models").json()
        history = client.get("/v1/gates/history").json()
        assert running.stop(signal.SIGKILL) == -signal.SIGKILL
    running, client = serve(models, tmp_path / "state")
    with client:
        assert client.get("/v2/health/ready").status_code == 200
        assert client.get("/v1/models").json() == before
        assert client.get("/v1/gates/history").json() == history
        answer = client.post("/v1/predict", content=RED, headers=PNG, params={"version": 1}).json()["predictions"][0]
        assert (answer["policy"], answer["threshold"], answer["in_distribution"]) == ("custom", 0.999, False)
    assert running.stop() == 0
    assert sum("an operator's gate is in force" in line for line in running.lines) == 2


def test_a_setting_that_no_longer_fits_is_said_and_not_applied(models: Path, tmp_path: Path) -> None:
    """Gates of a version that is gone, of a policy that is gone, and of other weights do not stop the start: each is
    logged, shown and exported, and the bundle's default decides."""
    folders = [make_bundle(models, version=version, perturbed=False) for version in (1, 2, 3)]
    first = HeldService(models, state=tmp_path / "state", **KEYS)
    for version, body in ((1, {"policy": "tpr95"}), (2, {"threshold": 0.9}), (3, {"policy": "tpr95"})):
        path = f"/v1/models/colours/versions/{version}/gate"
        assert first.client.put(path, json=body, headers=ADMIN).status_code == 200
    first.stop()
    folders[0].rewrite(lambda raw: raw["scores"]["confidence"]["policies"].pop("tpr95"))
    replace_weights(folders[1])
    folders[2].folder.rename(tmp_path / "gone")
    running, client = serve(models, tmp_path / "state")
    with client:
        for version, why in ((1, "no policy 'tpr95' any more"), (2, "other weights")):
            told = client.get(f"/v1/models/colours/versions/{version}/gate").json()
            assert (told["policy"], told["set_by_operator"], told["by"]) == ("misclassified", False, None)
            assert why in told["ignored"]
            assert f'confgate_gate_ignored{{model="colours",version="{version}"}} 1.0' in client.get("/metrics").text
        assert client.put("/v1/models/colours/versions/2/gate", json={"threshold": 0.8}).json()["ignored"] is None
        assert 'confgate_gate_ignored{model="colours",version="2"} 0.0' in client.get("/metrics").text
        assert client.delete("/v1/models/colours/versions/3/gate").status_code == 204
        assert client.delete("/v1/models/colours/versions/3/gate").status_code == 404
        assert client.delete("/v1/models/colours/versions/1/gate").status_code == 204
        assert client.get("/v1/models/colours/versions/1/gate").json()["ignored"] is None
    assert running.stop() == 0
    messages = [(line["level"], line["message"], line.get("version")) for line in running.log()]
    assert ("error", "an operator's gate is NOT in force", 1) in messages
    assert ("error", "an operator's gate is NOT in force", 2) in messages
    assert ("warning", "an operator's gate is kept for a version that is not served", 3) in messages
    kept = json.loads((tmp_path / "state" / "gates.json").read_text())["gates"]
    assert [(item["version"], item["gate"]["threshold"]) for item in kept] == [(2, 0.8)]


def test_a_policy_that_is_called_custom_is_kept(models: Path, tmp_path: Path) -> None:
    """A bundle's own policy may have the name of operators' thresholds: it is set by its name, also after a restart."""

    def rename(raw: dict[str, Any]) -> None:
        policies = raw["scores"]["confidence"]["policies"]
        policies["custom"] = policies.pop("tpr95")

    make_bundle(models, change=rename)
    for body in ({"policy": "custom"}, None):
        service = HeldService(models, state=tmp_path / "state", **KEYS)
        if body is not None:
            assert service.client.put(GATE, json=body, headers=ADMIN).status_code == 200
        told = service.client.get(GATE, headers=ADMIN).json()
        service.stop()
        assert (told["policy"], told["threshold_raw"], told["ignored"]) == ("custom", 4.0, None)


def replace_weights(bundle: BundleFolder) -> None:
    bundle.replace_graph("forward", graph_bytes(gain=9.0))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "the file: Invalid JSON"),
        ('{"schema_version": 2}', "schema_version: Input should be 1"),
        ('{"schema_version": 1, "gates": [{"model": "colours"}]}', r"gates\.0\.version: Field required"),
        ('{"schema_version": 1, "gate": []}', "gate: Extra inputs are not permitted"),
    ],
)
def test_a_state_that_cannot_be_read_stops_the_start(tmp_path: Path, content: str, says: str) -> None:
    """A damaged state file is never passed over: thresholds that were set would be gone, and nobody would know."""
    (tmp_path / "gates.json").write_text(content)
    with pytest.raises(StateError, match=says) as refused:
        StateFile(tmp_path).read()
    assert "move it away" in str(refused.value)
    assert (tmp_path / "gates.json").read_text() == content


def test_a_service_with_a_damaged_state_says_so(models: Path, tmp_path: Path) -> None:
    """It ends with the file, the reason and what to do, and no traceback."""
    (tmp_path / "gates.json").write_text("{")
    message = Service(models, "--state", str(tmp_path)).wait_until_refused()
    assert f"confgate: {tmp_path / 'gates.json'}: the file: Invalid JSON" in message
    assert "Traceback" not in message
