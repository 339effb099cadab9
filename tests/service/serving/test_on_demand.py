"""The graph for preprocessed scores takes its memory from its first use on, opened once."""

import gc
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.conftest import BLUE, RED, graph_bytes, make_bundle
from tests.service.conftest import HeldService
from tests.service.serving.reloading import SlowOpening, change
from tests.service.serving.test_load import post, wait_for

PREPROCESSED = "/v1/predict?preprocess=true"


def sessions(service: HeldService) -> dict[str, dict[str, object]]:
    """What GET /v1/models says of the newest version's graphs."""
    versions = service.client.get("/v1/models/colours").json()["versions"]
    newest: dict[str, dict[str, object]] = max(versions, key=lambda version: version["version"])["sessions"]
    return newest


def test_many_first_requests_open_it_once(held_service: HeldService) -> None:
    """While the graph is opened for sixteen requests at once, others are answered; then all sixteen are."""
    assert sessions(held_service)["perturbed"]["open"] is False
    slow = SlowOpening(held_service)
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(held_service.client.post, PREPROCESSED, content=RED) for _ in range(16)]
        assert slow.entered.acquire(timeout=60)
        assert post(held_service, BLUE).status_code == 200
        assert not any(one.done() for one in asked)
        slow.go_on.set()
        answers = [one.result().json()["predictions"][0] for one in asked]
    assert {(row["label"], row["score"]) for row in answers} == {("red", "confidence_preprocessed")}
    assert held_service.client.post(PREPROCESSED, content=RED).status_code == 200
    assert slow.opened == 1
    assert sessions(held_service)["perturbed"]["open"] is True


def test_a_graph_that_cannot_be_opened_is_tried_again(held_service: HeldService, models: Path) -> None:
    """Without its files, or with other ones, such requests get 503 and all others an answer; with them it is opened."""
    folder, away = models / "colours", models.parent / "away"
    folder.rename(away)
    for _ in range(2):
        refused = held_service.client.post(PREPROCESSED, content=RED)
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:confgate:problem:graph-unavailable")
        assert "without preprocess=true" in refused.json()["detail"]
        assert str(models) not in refused.text
    assert post(held_service, RED).status_code == 200
    make_bundle(models, change=lambda raw: raw.update(temperature=2.0))
    assert held_service.client.post(PREPROCESSED, content=RED).status_code == 503
    shutil.rmtree(folder)
    away.rename(folder)
    answer = held_service.client.post(PREPROCESSED, content=RED)
    assert answer.json()["predictions"][0]["score"] == "confidence_preprocessed"
    assert held_service.metric("confgate_requests_total", outcome="error") == 3


@pytest.mark.parametrize("held_service", [{"open_perturbed": "load"}], indirect=True)
def test_it_may_be_open_from_the_start(held_service: HeldService, models: Path) -> None:
    """With open_perturbed=load the first request opens nothing, and needs no files."""
    assert sessions(held_service)["perturbed"]["open"] is True
    slow = SlowOpening(held_service)
    shutil.rmtree(models / "colours")
    assert held_service.client.post(PREPROCESSED, content=RED).status_code == 200
    assert slow.opened == 0


def test_a_new_version_of_a_model_that_uses_it_has_it_open(held_service: HeldService, models: Path) -> None:
    """Where requests came for the graph of the old version, those for the new one do not wait."""
    assert held_service.client.post(PREPROCESSED, content=RED).status_code == 200
    make_bundle(models, version=2)
    assert change(held_service, "load").status_code == 200
    assert sessions(held_service)["perturbed"]["open"] is True


def test_a_graph_that_does_not_run_is_refused_at_load(held_service: HeldService, models: Path) -> None:
    """A perturbed graph is run when its model is loaded, although it is not kept open: a bad one never gets served."""
    make_bundle(models, version=2).replace_graph("perturbed", graph_bytes(perturbed=True, gain=float("inf")))
    refused: httpx.Response = change(held_service, "load")
    assert refused.status_code == 409
    assert "warm-up" in refused.json()["error"]


def test_default_gates_on_it_have_it_open(held_service: HeldService, models: Path) -> None:
    """A bundle whose default score needs the graph opens it at load."""
    default = {"score": "confidence_preprocessed", "policy": "misclassified"}
    make_bundle(models, version=2, change=lambda raw: raw.update(default=default))
    assert change(held_service, "load").status_code == 200
    assert sessions(held_service)["perturbed"]["open"] is True


def test_memory_of_a_replaced_version_is_free_at_once(held_service: HeldService, models: Path) -> None:
    """Sessions of a version that is dropped are gone with its last request, without a run of the garbage collector."""
    assert held_service.client.post(PREPROCESSED, content=RED).status_code == 200
    old = [weakref.ref(session) for session in held_service.model.sessions.values()]
    make_bundle(models, version=2)
    shutil.rmtree(models / "colours" / "1")
    gc.disable()
    try:
        assert change(held_service, "load").status_code == 200
        wait_for(lambda: not any(session() for session in old))
    finally:
        gc.enable()
