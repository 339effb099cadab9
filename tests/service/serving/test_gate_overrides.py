"""Thresholds changed at run time: what is answered, shown, counted, kept, and who may do it."""

import json
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.model.bundle import Histogram
from service.model.expectation import read_histogram
from service.model.scores import HISTOGRAM_EDGES, histogram, sigmoid
from service.web.keys import new_key
from tests.conftest import BLUE, GREY, RED, make_bundle
from tests.service.conftest import HeldService

PNG = {"Content-Type": "image/png"}
ALICE, ALICE_LINE = new_key("alice", "client")
OPS, OPS_LINE = new_key("ops", "admin")
ADMIN = {"Authorization": f"Bearer {OPS}"}
CLIENT = {"Authorization": f"Bearer {ALICE}"}
GATE = "/v1/models/colours/versions/1/gate"
KEYS = {"api_keys": f"{OPS_LINE} {ALICE_LINE}"}


@pytest.fixture
def operated(models: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[HeldService]:
    """A service with an operator, a client and a state folder."""
    make_bundle(models)
    service = HeldService(models, state=tmp_path / "state", **KEYS, **getattr(request, "param", {}))
    yield service
    service.stop()


def put(service: HeldService, body: dict[str, Any] | bytes, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return service.client.put(GATE, content=content, headers={**ADMIN, **headers})


def ask(service: HeldService, image: bytes = RED, **query: Any) -> dict[str, Any]:
    response = service.client.post("/v1/predict", content=image, headers={**PNG, **CLIENT}, params=query)
    assert response.status_code == 200, response.text
    prediction: dict[str, Any] = response.json()["predictions"][0]
    return prediction


def active(service: HeldService) -> dict[str, Any]:
    (version,) = service.client.get("/v1/models/colours", headers=CLIENT).json()["versions"]
    gate: dict[str, Any] = version["active"]
    return gate


def test_an_operator_sets_a_policy(operated: HeldService) -> None:
    """The policy that is set answers for requests that name none, and the one that is named still can be had."""
    assert ask(operated)["policy"] == "misclassified"
    answer = put(operated, {"policy": "tpr95", "note": "too many strangers"})
    assert answer.status_code == 200
    told = answer.json()
    assert (told["model"], told["version"], told["score"], told["policy"]) == ("colours", 1, "confidence", "tpr95")
    assert (told["by"], told["note"], told["set_by_operator"]) == ("ops", "too many strangers", True)
    assert told["expected_rejection_rate"] == 0.05
    assert ask(operated)["policy"] == "tpr95"
    assert ask(operated)["threshold"] == float(sigmoid(4.0))
    assert ask(operated, policy="misclassified")["threshold"] == 0.5
    assert ask(operated, score="max_softmax")["policy"] == "tpr95"
    assert operated.metric("confgate_policy_active", policy="tpr95", score="confidence") == 1
    assert operated.metric("confgate_policy_active", policy="misclassified", score="confidence") == 0
    assert operated.client.delete(GATE, headers=ADMIN).status_code == 204
    assert ask(operated)["policy"] == "misclassified"
    assert active(operated)["set_by_operator"] is False
    assert operated.metric("confgate_policy_active", policy="misclassified", score="confidence") == 1


@pytest.mark.parametrize(
    ("body", "raw", "shown"),
    [
        ({"threshold": 0.999}, math.log(999), 0.999),
        ({"threshold_raw": 6.5}, 6.5, float(sigmoid(6.5))),
        ({"threshold_raw": 800.0}, 800.0, 1.0),
    ],
)
def test_an_operator_sets_a_threshold_of_their_own(
    operated: HeldService, body: dict[str, float], raw: float, shown: float
) -> None:
    """A custom δ on either scale decides, is shown in the answer, in /v1/models and in metrics, and is counted."""
    assert put(operated, body).status_code == 200
    red = ask(operated)  # its score is 6
    assert (red["policy"], red["threshold"], red["in_distribution"]) == ("custom", shown, False)
    assert ask(operated, policy="custom")["threshold"] == shown
    assert ask(operated, score="max_softmax")["policy"] == "misclassified"
    told = active(operated)
    assert told["threshold"] == shown
    assert told["threshold_raw"] == pytest.approx(raw, rel=1e-12)
    custom = {"policy": "custom", "score": "confidence"}
    assert operated.metric("confgate_policy_threshold", **custom) == shown
    assert operated.metric("confgate_policy_active", **custom) == 1
    assert operated.metric("confgate_policy_active", policy="misclassified", score="confidence") == 0
    assert operated.metric("confgate_policy_calibration_images", **custom) == 100
    assert operated.metric("confgate_policy_expected_rejection_rate", **custom) == told["expected_rejection_rate"]
    assert operated.metric("confgate_policy_expected_rejection_margin", **custom) == told["expected_rejection_margin"]
    assert operated.metric("confgate_policy_decisions_total", **custom, decision="rejected") == 3
    assert put(operated, {"threshold": 0.9}).status_code == 200
    assert ask(operated)["in_distribution"] is True
    assert operated.metric("confgate_policy_decisions_total", **custom, decision="accepted") == 1
    assert put(operated, {"policy": "misclassified"}).status_code == 200
    scrape = operated.client.get("/metrics").text
    assert 'policy="custom"' not in scrape


def test_a_custom_threshold_on_the_preprocessed_score_runs_the_perturbed_graph(operated: HeldService) -> None:
    """A gate on another score makes requests that name none be computed and decided by that score."""
    assert put(operated, {"score": "confidence_preprocessed", "threshold": 0.6}).status_code == 200
    answer = ask(operated)
    assert (answer["score"], answer["policy"]) == ("confidence_preprocessed", "custom")
    assert answer["confidence_preprocessed"] is not None
    assert put(operated, {"score": "max_softmax", "threshold_raw": -1}).status_code == 200
    assert operated.metric("confgate_policy_active", policy="custom", score="confidence_preprocessed") == 0
    assert ask(operated, preprocess="true")["score"] == "confidence_preprocessed"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "EOF while parsing"),
        (b"[]", "Input should be an object"),
        ({}, "exactly one of policy, threshold, threshold_raw, and familiarity and/or certainty, not none"),
        ({"familiarity": 0.1}, "this model has no pairs of thresholds"),
        ({"policy": "tpr95", "threshold": 0.5}, "exactly one of"),
        ({"threshold": 0}, "threshold: Input should be greater than 0"),
        ({"threshold": 1}, "threshold: Input should be less than 1"),
        ({"threshold": "0.5"}, "threshold: Input should be a valid number"),
        (b'{"threshold": NaN}', "threshold: Input should be a finite number"),
        (b'{"threshold_raw": Infinity}', "threshold_raw: Input should be a finite number"),
        (b'{"threshold_raw": 1e999}', "threshold_raw: Input should be a finite number"),
        ({"policy": "nope"}, "policy 'nope' is unknown; score confidence has misclassified, tpr95"),
        ({"policy": "tpr95", "score": "odin"}, "score 'odin' is unknown; this model has"),
        ({"policy": "tpr95", "score": "colour"}, "score: Input should be"),
        ({"policy": "tpr95", "until": "tomorrow"}, "until: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_change_is_refused_and_changes_nothing(
    operated: HeldService, body: dict[str, Any] | bytes, says: str
) -> None:
    """What is not exactly one known policy or one finite threshold is 400 with what was expected."""
    answer = put(operated, body)
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert says in answer.json()["detail"]
    assert active(operated)["set_by_operator"] is False
    assert operated.client.get("/v1/gates/history", headers=ADMIN).json() == {"changes": []}


def test_a_parameter_that_is_given_twice_is_refused(operated: HeldService) -> None:
    """The history of two models cannot be asked for at once: neither is chosen in silence."""
    answer = operated.client.get("/v1/gates/history?model=a&model=b", headers=ADMIN)
    assert answer.status_code == 400
    assert "'model' is given twice" in answer.json()["detail"]


def test_only_an_admin_key_changes_anything(operated: HeldService) -> None:
    """Nobody and a client are refused on every operator's route: 401 without a key, 403 with one that may not."""
    client = operated.client
    for method, path in (("GET", GATE), ("PUT", GATE), ("DELETE", GATE), ("GET", "/v1/gates/history")):
        assert client.request(method, path).status_code == 401
        refused = client.request(method, path, headers=CLIENT)
        assert refused.status_code == 403
        assert refused.json()["detail"] == "the key 'alice' is not an admin key; this needs one"
    assert active(operated)["set_by_operator"] is False


@pytest.mark.parametrize("held_service", [{"api_keys": None}], indirect=True)
def test_without_an_admin_key_the_answer_says_how_to_get_one(held_service: HeldService) -> None:
    """Also on loopback nobody is an admin without a key, because any page in a browser can send requests there."""
    refused = held_service.client.put(GATE, json={"policy": "tpr95"})
    assert refused.status_code == 403
    assert "confgate keys new" in refused.json()["detail"]


def test_what_is_not_there_is_not_found(operated: HeldService) -> None:
    """Another model or version is 404; a version that is no number, a negative limit and a giant body are refused."""
    client = operated.client
    for path in ("/v1/models/colours/versions/2/gate", "/v1/models/nope/versions/1/gate"):
        assert client.get(path, headers=ADMIN).status_code == 404
        assert client.put(path, headers=ADMIN, json={"policy": "tpr95"}).status_code == 404
        assert client.delete(path, headers=ADMIN).status_code == 404
    refused = client.get("/v1/models/colours/versions/latest/gate", headers=ADMIN)
    assert refused.status_code == 400
    assert "version" in refused.json()["detail"]
    assert client.get("/v1/gates/history?limit=-1", headers=ADMIN).status_code == 400
    assert put(operated, b" " * 20_000).status_code == 413


def test_every_change_is_in_the_history(operated: HeldService, caplog: pytest.LogCaptureFixture) -> None:
    """Who, when, from what and to what is in the log and can be read, newest first; doing nothing is no change."""
    operated.client.delete(GATE, headers=ADMIN)
    put(operated, {"policy": "tpr95"})
    put(operated, {"threshold": 0.7, "note": "after the review"})
    operated.client.delete(GATE, headers=ADMIN)
    changes = operated.client.get("/v1/gates/history", headers=ADMIN).json()["changes"]
    assert [change["action"] for change in changes] == ["reset", "set", "set"]
    assert [change["before"]["policy"] for change in changes] == ["custom", "tpr95", "misclassified"]
    assert [change["after"]["policy"] for change in changes] == ["misclassified", "custom", "tpr95"]
    assert {change["by"] for change in changes} == {"ops"}
    assert changes[1]["note"] == "after the review"
    assert changes[0]["at"] > changes[1]["at"] > changes[2]["at"]
    assert len([record for record in caplog.records if record.message == "gate changed"]) == 3
    params: dict[str, Any] = {"model": "colours", "version": 1, "limit": 1}
    assert len(operated.client.get("/v1/gates/history", headers=ADMIN, params=params).json()["changes"]) == 1
    params["version"] = 2
    assert operated.client.get("/v1/gates/history", headers=ADMIN, params=params).json()["changes"] == []


def test_an_answer_never_mixes_two_thresholds(operated: HeldService) -> None:
    """A request that was taken in before a change is decided and answered with the gate it was taken in with."""
    with ThreadPoolExecutor(2) as pool:
        held = operated.held
        held.go_on.clear()
        before = pool.submit(ask, operated)
        held.wait_until_entered()
        assert put(operated, {"threshold": 0.999}).status_code == 200
        after = pool.submit(ask, operated, BLUE)
        held.go_on.set()
        first, second = before.result(), after.result()
    assert (first["policy"], first["threshold"], first["in_distribution"]) == ("misclassified", 0.5, True)
    assert (second["policy"], second["threshold"], second["in_distribution"]) == ("custom", 0.999, False)


def test_answers_agree_with_themselves_while_the_gate_is_changed(operated: HeldService) -> None:
    """Under load, with the gate changed all the time, each answer's flag follows from its own threshold."""
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            for body in ({"threshold": 0.999}, {"policy": "misclassified"}, {"threshold": 0.01}):
                assert put(operated, body).status_code == 200

    with ThreadPoolExecutor(4) as pool:
        changing = pool.submit(change)
        answers = list(pool.map(lambda i: ask(operated, (RED, GREY)[i % 2]), range(120)))
        stop.set()
        changing.result()
    assert all(item["in_distribution"] == (item["score_value"] > item["threshold"]) for item in answers)
    thresholds = {"custom": {0.999, 0.01}, "misclassified": {0.5}}
    assert all(item["threshold"] in thresholds[item["policy"]] for item in answers)


def test_a_change_that_cannot_be_kept_is_not_made(operated: HeldService, tmp_path: Path) -> None:
    """Where the state file cannot be written, or another process wrote it, the change is 500 and the old gate stays."""
    assert put(operated, {"policy": "tpr95"}).status_code == 200
    file = tmp_path / "state" / "gates.json"
    kept = file.read_bytes()
    file.write_bytes(kept + b"\n")
    refused = put(operated, {"threshold": 0.7})
    assert refused.status_code == 500
    assert refused.json()["type"] == "urn:confgate:problem:state-not-saved"
    assert "written by somebody else" in refused.json()["detail"]
    file.write_bytes(kept)
    partial = tmp_path / "state" / ".gates.json.partial"
    partial.mkdir()  # also root cannot write a file where a folder is
    refused = put(operated, {"threshold": 0.7})
    assert refused.status_code == 500
    assert "nothing was changed" in refused.json()["detail"]
    assert active(operated)["policy"] == "tpr95"
    partial.rmdir()
    assert put(operated, {"threshold": 0.7}).status_code == 200
    assert json.loads(file.read_text())["gates"][0]["gate"]["threshold"] == 0.7


def test_what_a_threshold_is_expected_to_refuse() -> None:
    """On an edge the share of the calibration images is exact; inside a bucket it lies within the margin."""
    scores = [math.log(p / (1 - p)) for p in (i / 1000 + 0.0005 for i in range(1000))]
    reference = Histogram(counts=histogram(scores))
    for edge in HISTOGRAM_EDGES:
        rate, margin, n = read_histogram(reference, edge)
        assert rate == pytest.approx(sum(sigmoid(scores) <= edge) / 1000, abs=1e-12)
        assert (margin, n) == (0.0, 1000)
    for shown in (1e-300, 0.0004, 0.33, 0.91, 0.9995, 1 - 1e-16):
        rate, margin, _ = read_histogram(reference, shown)
        assert 0 <= rate <= 1
        assert abs(rate - sum(sigmoid(scores) <= shown) / 1000) <= margin
    lopsided = Histogram(counts=(*[0] * 12, 100, *[0] * (len(HISTOGRAM_EDGES) - 13)))
    assert read_histogram(lopsided, 0.46) == pytest.approx((0.2, 0.8, 100))
