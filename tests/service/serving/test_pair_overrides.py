"""Pairs of thresholds that an operator sets at run time: what is answered, counted, kept and restored."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.model.scores import sigmoid
from service.serving.override_store import State
from tests.conftest import ADMIN, GREY, RED, BundleFolder, graph_bytes, make_bundle
from tests.pair_bundles import DARK, FAMILIARITY, make_pair_bundle
from tests.service.conftest import HeldService

PNG = {"Content-Type": "image/png"}
GATE = "/v1/models/colours/versions/1/gate"
SHOWN = float(sigmoid(FAMILIARITY))


@pytest.fixture
def folder(models: Path) -> BundleFolder:
    return make_pair_bundle(models)


@pytest.fixture
def operated(folder: BundleFolder, tmp_path: Path) -> Iterator[HeldService]:
    """A service with a pair bundle and a state folder."""
    models = folder.folder.parent.parent
    service = HeldService(models, state=tmp_path / "state")
    yield service
    service.stop()


def put(service: HeldService, **body: Any) -> httpx.Response:
    return service.client.put(GATE, json=body, headers=ADMIN)


def set_gate(service: HeldService, **body: Any) -> dict[str, Any]:
    answer = put(service, **body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def thresholds(told: dict[str, Any]) -> tuple[float, float]:
    return told["threshold"], told["certainty_threshold"]


def ask(service: HeldService, image: bytes = RED, **query: Any) -> dict[str, Any]:
    response = service.client.post("/v1/predict", content=image, headers=PNG, params=query)
    assert response.status_code == 200, response.text
    prediction: dict[str, Any] = response.json()["predictions"][0]
    return prediction


def test_a_half_that_is_not_given_stays(operated: HeldService) -> None:
    """A change of one threshold keeps the other of the pair in force; 0 makes a half refuse nothing."""
    told = set_gate(operated, certainty=0.3)
    assert (told["score"], told["policy"], thresholds(told)) == ("typicality", "custom", (SHOWN, 0.3))
    assert told["certainty_threshold_raw"] == pytest.approx(math.log(0.3 / 0.7))
    assert ask(operated, GREY)["reason"] is None
    assert thresholds(set_gate(operated, familiarity=0)) == (0.0, 0.3)
    dark = ask(operated, DARK)
    assert (dark["reason"], dark["policy"], thresholds(dark)) == (None, "custom", (0.0, 0.3))
    assert thresholds(ask(operated, policy="custom")) == (0.0, 0.3)
    told = set_gate(operated, familiarity=0.9, certainty=0.0)
    assert (told["threshold_raw"], told["certainty_threshold_raw"]) == (pytest.approx(math.log(9)), None)
    assert ask(operated, GREY)["reason"] == "unfamiliar"


def test_a_half_that_is_not_given_comes_from_the_bundle_where_a_score_is_in_force(operated: HeldService) -> None:
    """After a gate on one score, a change of one half takes the other from the bundle's default pair."""
    assert set_gate(operated, score="energy", policy="tpr95")["certainty_threshold"] is None
    assert ask(operated)["score"] == "energy"
    assert ask(operated, GREY, policy="balanced")["reason"] == "unsure"
    assert thresholds(set_gate(operated, familiarity=0.01)) == (0.01, 0.5)


def test_a_policy_without_a_score_is_a_pair(operated: HeldService) -> None:
    """The name of a pair is enough; that of a single score needs its score, and so does a single threshold."""
    assert set_gate(operated, policy="foreign_only")["certainty_threshold"] == 0.0
    assert operated.metric("confgate_policy_active", policy="foreign_only", score="pair") == 1
    assert operated.metric("confgate_policy_active", policy="balanced", score="pair") == 0
    assert set_gate(operated, policy="tpr95", score="typicality")["certainty_threshold"] is None
    assert ask(operated, score="typicality")["policy"] == "tpr95"
    for body, says in (
        ({"policy": "tpr95"}, "policy 'tpr95' is unknown; pairs of thresholds have balanced, foreign_only, accept_all"),
        ({"threshold": 0.5}, "give familiarity and/or certainty, or name the score"),
        ({"policy": "balanced", "score": "typicality"}, "score typicality has misclassified, tpr95"),
        ({"familiarity": 0.1, "policy": "balanced"}, "not policy with familiarity and/or certainty"),
        ({"certainty": 0.1, "score": "certainty"}, "leave score out"),
        ({"certainty": 1}, "certainty: Input should be less than 1"),
        ({"familiarity": -0.1}, "familiarity: Input should be greater than or equal to 0"),
    ):
        refused = put(operated, **body)
        assert refused.status_code == 400
        assert says in refused.json()["detail"]
    assert ask(operated)["score"] == "typicality"


def test_a_pair_that_is_called_custom_is_set_by_its_name(models: Path) -> None:
    """Thresholds of one's own would pass for the bundle's policy of that name, and are refused."""

    def add_custom(raw: dict[str, Any]) -> None:
        raw["pairs"]["policies"]["custom"] = raw["pairs"]["policies"]["balanced"]

    make_pair_bundle(models, change=add_custom)
    service = HeldService(models)
    assert put(service, certainty=0.4).status_code == 400
    assert set_gate(service, policy="custom")["certainty_threshold"] == 0.5
    service.stop()


def test_what_an_own_pair_is_expected_to_refuse(operated: HeldService) -> None:
    """The answer and the metrics have the expected refusals by reason, read off the joint histogram."""
    told = set_gate(operated, familiarity=0.5, certainty=0.5)  # both on edges: nothing is guessed
    # 4 images on each of the diagonal's 28 cells, 4 more on the first, and 28 wrong ones in the last row.
    unfamiliar, unsure = (4 * 23 + 4) / 144, 10 / 144
    assert told["expected_refusals"] == pytest.approx({"unfamiliar": unfamiliar, "unsure": unsure})
    assert told["expected_rejection_rate"] == pytest.approx(unfamiliar + unsure)
    assert (told["expected_rejection_margin"], told["n"]) == (0.0, 144)
    custom = {"policy": "custom", "score": "pair"}
    assert operated.metric("confgate_policy_threshold", **custom) == 0.5
    assert operated.metric("confgate_policy_certainty_threshold", **custom) == 0.5
    assert operated.metric("confgate_policy_expected_refusals", **custom, reason="unsure") == pytest.approx(unsure)
    assert operated.metric("confgate_policy_expected_rejection_rate", **custom) == pytest.approx(unfamiliar + unsure)
    assert set_gate(operated, certainty=0.47)["expected_rejection_margin"] > 0
    margin = "confgate_policy_expected_refusals_margin"  # only the half that lies inside a bucket is guessed
    assert operated.metric(margin, **custom, reason="unfamiliar") == 0
    assert operated.metric(margin, **custom, reason="unsure") > 0
    assert operated.metric("confgate_policy_active", **custom) == 1
    for image in (RED, GREY, DARK):
        ask(operated, image, policy="accept_all")
    decided = "confgate_policy_decisions_total"
    assert operated.metric(decided, **custom, decision="accepted", reason="none") == 1
    assert operated.metric(decided, **custom, decision="rejected", reason="unsure") == 1
    assert operated.metric(decided, **custom, decision="rejected", reason="unfamiliar") == 1
    assert operated.client.delete(GATE, headers=ADMIN).status_code == 204
    assert 'policy="custom"' not in operated.client.get("/metrics").text


def test_pairs_survive_a_restart(operated: HeldService, models: Path, tmp_path: Path) -> None:
    """An own pair with a half that refuses nothing is kept without infinity, and is in force after a restart."""
    before = set_gate(operated, familiarity=0, certainty=0.3, note="all cameras are new")
    file = tmp_path / "state" / "gates.json"
    kept = json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert kept["gates"][0]["gate"]["threshold_raw"] is None
    (change,) = operated.client.get("/v1/gates/history", headers=ADMIN).json()["changes"]
    assert thresholds(change["before"]) == (SHOWN, 0.5)
    assert change["before"]["expected_refusals"] == {"unfamiliar": 0.05, "unsure": 0.1}
    assert thresholds(change["after"]) == (0.0, 0.3)
    again = HeldService(models, state=tmp_path / "state")
    assert again.client.get(GATE, headers=ADMIN).json() == before
    assert ask(again, DARK)["accepted"] is True
    set_gate(again, policy="foreign_only")
    again.stop()
    again = HeldService(models, state=tmp_path / "state")
    assert again.client.get(GATE, headers=ADMIN).json()["policy"] == "foreign_only"
    assert ask(again, GREY)["accepted"] is True
    again.stop()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"policy": "foreign_only"}, "the bundle has no pair 'foreign_only' any more"),
        ({"certainty": 0.3}, "the bundle has other weights"),
        ({"familiarity": 0.3}, "the bundle has a policy 'custom' of its own now"),
        ({"familiarity": 0.2}, "the bundle has no pairs of thresholds any more"),
    ],
    ids=["policy gone", "weights", "custom", "no pairs"],
)
def test_a_pair_that_no_longer_fits_is_not_applied(
    folder: BundleFolder, operated: HeldService, models: Path, tmp_path: Path, body: dict[str, Any], why: str
) -> None:
    """A pair whose policy is gone, or that was set for another bundle, is said and not in force."""

    def change_pairs(raw: dict[str, Any]) -> None:
        policies = raw["pairs"]["policies"]
        policies["custom"] = policies.pop("foreign_only")

    set_gate(operated, **body)
    if "weights" in why:
        folder.replace_graph("forward", graph_bytes(neighbours=True, gain=9.0))
    elif "no pairs" in why:
        old = make_bundle(tmp_path / "old" / "models")
        folder.folder.rename(tmp_path / "gone")
        old.folder.rename(folder.folder)
    else:
        folder.rewrite(change_pairs)
    again = HeldService(models, state=tmp_path / "state")
    told = again.client.get(GATE, headers=ADMIN).json()
    assert why in told["ignored"]
    assert told["set_by_operator"] is False
    assert told["policy"] == ("misclassified" if "no pairs" in why else "balanced")
    assert again.metric("confgate_gate_ignored") == 1
    again.stop()


def test_state_files_from_before_pairs_are_read() -> None:
    """A record without the newer fields is a gate on one score; one without any threshold is refused."""
    gate = {
        "score": "confidence",
        "policy": "tpr95",
        "threshold": 0.98,
        "threshold_raw": 4.0,
        "expected_rejection_rate": 0.05,
    }
    setting = {"model": "m", "version": 1, "custom": False, "graph_sha256": "0", "by": "ops", "at": "2026-01-01T00:00Z"}
    (read,) = State.model_validate_json(json.dumps({"gates": [{**setting, "gate": gate}]}), strict=True).gates
    assert (read.gate.is_pair, read.gate.expected_refusals) == (False, None)
    with pytest.raises(ValueError, match="threshold_raw is null"):
        State.model_validate_json(json.dumps({"gates": [{**setting, "gate": {**gate, "threshold_raw": None}}]}))
