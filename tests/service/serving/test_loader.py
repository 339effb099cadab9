"""/v2/repository: index, load and unload, by whom, of what, and what is refused."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.conftest import ADMIN, OPERATOR_LINE, RED, Service, make_bundle
from tests.service.conftest import HeldService
from tests.service.serving.reloading import SlowOpening, change, index, is_told, version_of
from tests.service.serving.test_load import hold, post, wait_for


def test_unload_answers_what_is_in_flight_and_then_404(held_service: HeldService) -> None:
    """After an unload nobody finds the model, those who had found it are answered, and a load brings it back."""
    old = held_service.held
    with ThreadPoolExecutor(1) as pool:
        first = hold(held_service, pool)
        assert change(held_service, "unload", unload_dependents=False).status_code == 200
        assert held_service.client.get("/v2/models/colours").status_code == 404
        assert held_service.client.get("/v2/models/colours/ready").status_code == 404
        assert held_service.client.post("/v1/predict?model=colours", content=RED).status_code == 404
        # Nothing is left to ask.
        assert post(held_service).status_code == 503
        assert held_service.client.get("/v2/health/ready").status_code == 503
        assert held_service.client.get("/v2/health/live").status_code == 200
        assert change(held_service, "unload").status_code == 404
        assert index(held_service) == {("colours", "1"): ("UNAVAILABLE", "not loaded")}
        old.go_on.set()
        assert first.result().json()["predictions"][0]["label"] == "red"
    wait_for(lambda: not is_told(held_service, "1"))
    assert change(held_service, "load").status_code == 200
    assert version_of(held_service) == 1
    assert held_service.held is not old
    assert held_service.metric("confgate_model_ready") == 1
    assert held_service.client.get("/v2/health/ready").status_code == 200


def test_tritonclient_loads_and_unloads(held_service: HeldService) -> None:
    """The client's own calls work: unload, load, index, and the sentence of a refusal."""
    with triton.InferenceServerClient(held_service.url.removeprefix("http://")) as client:
        client.unload_model("colours", headers=ADMIN)
        assert not client.is_model_ready("colours")
        assert [entry["state"] for entry in client.get_model_repository_index(headers=ADMIN)] == ["UNAVAILABLE"]
        client.load_model("colours", headers=ADMIN)
        assert client.is_model_ready("colours")
        with pytest.raises(InferenceServerException, match="there is no model 'nope' in the models folder"):
            client.load_model("nope", headers=ADMIN)
        with pytest.raises(InferenceServerException, match="'config' is unknown"):
            client.load_model("colours", headers=ADMIN, config="{}")


def test_one_version_is_loaded_or_unloaded_alone(held_service: HeldService, models: Path) -> None:
    """parameters.version names the one version to load or unload; the others stay as they are."""
    for version in (2, 3):
        make_bundle(models, version=version)
    assert change(held_service, "load", version=3).status_code == 200
    assert sorted(held_service.app.state.registry.table["colours"]) == [1, 3]
    assert change(held_service, "load", version="2").status_code == 200
    assert change(held_service, "unload", version=3).status_code == 200
    assert version_of(held_service) == 2
    for parameters, status, words in (
        ({"version": 9}, 404, "there is no version 9 of 'colours'"),
        ({"version": -1}, 400, "whole number"),
        ({"version": True}, 400, "whole number"),
        ({"version": "1/../2"}, 400, "whole number"),
        ({"config": "{}"}, 400, "'config' is unknown"),
    ):
        answer = change(held_service, "load", **parameters)
        assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
    assert change(held_service, "unload", version=3).status_code == 404


@pytest.mark.parametrize("held_service", [{}, {"default_model": "colours"}], indirect=True)
def test_the_default_model_may_be_unloaded(held_service: HeldService, models: Path) -> None:
    """Requests that name no model then get the first that is left, or 404 where the setting named the one that went."""
    make_bundle(models, "zebra", perturbed=False)
    assert change(held_service, "load", "zebra").status_code == 200
    assert change(held_service, "unload", "colours").status_code == 200
    answer = post(held_service)
    if held_service.settings.default_model is None:
        assert answer.json()["model"] == "zebra"
    else:
        assert answer.status_code == 404
        assert "'colours' is not loaded; served are zebra" in answer.json()["detail"]
    assert held_service.client.get("/v1/models").status_code == 200


@pytest.mark.parametrize(
    "name", ["nope", "..", "%2e%2e", ".hidden", "..%2f..%2fetc", "colours%2f1", "%2fetc", "a%00b", "x" * 5000, "%ff"]
)
def test_only_names_in_the_folder_are_loaded(held_service: HeldService, models: Path, name: str) -> None:
    """Unknown names, paths and hidden folders are 404 with {"error"}, for load and unload alike."""
    make_bundle(models / ".hidden" / "models")
    for action in ("load", "unload"):
        # As it stands: httpx would tidy the path up.
        url = httpx.URL(held_service.url).copy_with(raw_path=f"/v2/repository/models/{name}/{action}".encode())
        answer = held_service.client.post(url, headers=ADMIN)
        assert answer.status_code == 404, answer.text
        assert answer.json().keys() == {"error"}
        assert len(answer.json()["error"]) < 12_000
    metrics = held_service.client.get("/metrics").text
    assert "nope" not in metrics
    assert "hidden" not in metrics


def test_a_models_folder_that_is_away_changes_nothing(held_service: HeldService, models: Path) -> None:
    """Without its folder a load is refused, and what is served goes on and is still shown."""
    models.rename(models.with_name("away"))
    answer = change(held_service, "load")
    assert answer.status_code == 409
    assert "the models folder cannot be read: No such file" in answer.json()["error"]
    assert version_of(held_service) == 1
    assert index(held_service) == {("colours", "1"): ("READY", "")}


def test_loads_at_once_are_one_load(held_service: HeldService, models: Path) -> None:
    """Eight loads of the same model at the same time all succeed, and its graphs are opened once."""
    slow = SlowOpening(held_service)
    make_bundle(models, version=2)
    with ThreadPoolExecutor(8) as pool:
        loads = [pool.submit(change, held_service, "load") for _ in range(8)]
        assert slow.entered.acquire(timeout=60)
        slow.go_on.set()
        assert [load.result().status_code for load in loads] == [200] * 8
    assert slow.opened == 2  # forward and perturbed
    assert version_of(held_service) == 2


def test_only_administrators_may_change_what_is_served(held_service: HeldService) -> None:
    """Index, load and unload need an administrator's key, on loopback too."""
    for path in ("index", "models/colours/load", "models/colours/unload"):
        answer = held_service.client.post(f"/v2/repository/{path}")
        assert answer.status_code == 401
        assert "this needs an admin key" in answer.json()["error"]
    assert version_of(held_service) == 1


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"x": 1}', b'{"parameters": 1}', b"[" * 5000, b"\xff", b"x" * 10_001])
def test_a_wrong_body_is_told_so(held_service: HeldService, body: bytes) -> None:
    """What is no JSON object with known fields is refused, and nothing is loaded."""
    for path in ("index", "models/colours/load", "models/colours/unload"):
        answer = held_service.client.post(f"/v2/repository/{path}", content=body, headers=ADMIN)
        assert answer.status_code == (413 if len(body) > 10_000 else 400), answer.text
        assert answer.json()["error"]
    assert version_of(held_service) == 1


def test_who_loaded_what_is_in_the_log(models: Path) -> None:
    """A load leaves lines that say who asked for what, what was loaded and what was dropped."""
    make_bundle(models)
    service = Service(models, "--api-keys", OPERATOR_LINE).wait_until_serving()
    make_bundle(models, version=2)
    shutil.rmtree(models / "colours" / "1")
    url = f"{service.url}/v2/repository/models/colours/load"
    assert httpx.post(url, headers={**ADMIN, "X-Request-Id": "load-1"}, trust_env=False).status_code == 200
    service.wait_for_line("model dropped")
    service.wait_for_line("load-1")
    assert service.stop() == 0
    lines = service.log()
    (request,) = [line for line in lines if line.get("request_id") == "load-1"]
    assert (request["action"], request["model"], request["status"]) == ("load", "colours", 200)
    assert request["caller"]
    versions = {line["message"]: line["version"] for line in lines if line["message"].startswith("model ")}
    assert versions == {"model loaded": 2, "model dropped": 1}
