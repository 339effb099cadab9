"""A model whose default is a pair of thresholds: what is answered and shown, and which gate a request gets."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service.model.scores import sigmoid
from service.web.v1.schemas import ModelsResponse, PredictResponse
from service.web.v2.schemas import InferenceResponse
from tests.conftest import GREY, RED, Service, make_bundle
from tests.pair_bundles import DARK, FAMILIARITY, make_pair_bundle
from tests.service.web.triton_client import json_request, post

PNG = {"Content-Type": "image/png"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a service with `colours` (pairs) and `single`: the same scores and pairs, but a score by default."""
    models = tmp_path_factory.mktemp("pairs") / "models"
    make_pair_bundle(models)
    default = {"score": "confidence", "policy": "tpr95"}
    make_pair_bundle(models, "single", change=lambda raw: raw.update(default=default))
    make_bundle(models, "old")
    running = Service(models, "--default-model", "colours").wait_until_serving()
    with httpx.Client(base_url=running.url, timeout=30, verify=False, trust_env=False) as client:
        yield client
    assert running.stop() == 0


def ask(client: httpx.Client, image: bytes = RED, **query: Any) -> dict[str, Any]:
    response = client.post("/v1/predict", content=image, headers=PNG, params=query)
    assert response.status_code == 200, response.text
    (prediction,) = PredictResponse.model_validate_json(response.content).model_dump()["predictions"]
    return dict(prediction)


def refusal(client: httpx.Client, **query: Any) -> str:
    response = client.post("/v1/predict", content=RED, headers=PNG, params=query)
    assert response.status_code == 400, response.text
    return str(response.json()["detail"])


@pytest.mark.parametrize(
    ("image", "accepted", "in_distribution", "reason"),
    [(RED, True, True, None), (GREY, False, True, "unsure"), (DARK, False, False, "unfamiliar")],
    ids=["accepted", "unsure", "unfamiliar"],
)
def test_a_pair_says_why(
    pairs: httpx.Client, image: bytes, accepted: bool, in_distribution: bool, reason: str | None
) -> None:
    """An image is accepted if it exceeds both thresholds; only what is unfamiliar is out-of-distribution."""
    answer = ask(pairs, image)
    assert (answer["accepted"], answer["in_distribution"], answer["reason"]) == (accepted, in_distribution, reason)
    assert (answer["score"], answer["policy"]) == ("typicality", "balanced")
    assert answer["threshold"] == float(sigmoid(FAMILIARITY))
    assert answer["certainty_threshold"] == 0.5
    assert answer["score_value"] == answer["typicality"]
    assert answer["certainty"] == max(answer["probabilities"].values())
    assert in_distribution == (answer["score_value"] > answer["threshold"])
    assert accepted == (in_distribution and answer["certainty"] > answer["certainty_threshold"])


@pytest.mark.parametrize("model", ["colours", "single"])
def test_a_policy_without_a_score_is_a_pair_first(pairs: httpx.Client, model: str) -> None:
    """A pair is chosen by its name alone, whatever the default is, and one half of it may refuse nothing."""
    assert ask(pairs, GREY, model=model, policy="balanced")["reason"] == "unsure"
    lax = ask(pairs, GREY, model=model, policy="foreign_only")
    assert (lax["reason"], lax["certainty_threshold"], lax["policy"]) == (None, 0.0, "foreign_only")
    assert ask(pairs, DARK, model=model, policy="foreign_only")["reason"] == "unfamiliar"
    everything = ask(pairs, DARK, model=model, policy="accept_all")
    assert (everything["accepted"], everything["threshold"], everything["certainty_threshold"]) == (True, 0.0, 0.0)


def test_a_score_that_is_named_decides_alone(pairs: httpx.Client) -> None:
    """With score= no pair decides, also where it is a score of the pair; the policy is then misclassified."""
    dark = ask(pairs, DARK, score="typicality")
    assert (dark["policy"], dark["certainty_threshold"], dark["accepted"]) == ("misclassified", None, True)
    grey = ask(pairs, GREY, score="certainty")
    assert (grey["accepted"], grey["in_distribution"], grey["reason"]) == (False, False, "unsure")
    assert grey["score_value"] == grey["certainty"]
    assert ask(pairs, score="typicality", policy="tpr95")["threshold"] == float(sigmoid(1.0))
    assert ask(pairs, GREY, score="confidence")["reason"] == "unfamiliar"
    assert "score typicality has misclassified, tpr95" in refusal(pairs, score="typicality", policy="balanced")


def test_a_single_default_keeps_its_policies(pairs: httpx.Client) -> None:
    """Where the bundle's default is a score, a policy that is no pair is one of that score, as ever."""
    assert ask(pairs, model="single")["policy"] == "tpr95"
    chosen = ask(pairs, model="single", policy="misclassified")
    assert (chosen["score"], chosen["certainty_threshold"]) == ("confidence", None)
    assert ask(pairs, model="single", score="energy")["policy"] == "tpr95"


def test_an_unknown_policy_is_told_what_there_is(pairs: httpx.Client) -> None:
    """The refusal lists the pairs and says that a policy of a single score needs the score."""
    told = refusal(pairs, policy="tpr95")
    assert "policy 'tpr95' is unknown" in told
    assert "balanced, foreign_only, accept_all" in told
    assert "needs score=" in told
    told = refusal(pairs, policy="nope", model="single")
    assert "score confidence has misclassified, tpr95" in told
    assert "balanced, foreign_only, accept_all" in told
    assert "pairs" not in refusal(pairs, policy="nope", model="old")


def test_preprocessing_decides_unless_a_pair_is_named(pairs: httpx.Client) -> None:
    """preprocess=true gates on the preprocessed score; with the name of a pair that score is only shown."""
    alone = ask(pairs, preprocess="true")
    assert (alone["score"], alone["policy"], alone["reason"]) == ("confidence_preprocessed", "misclassified", None)
    assert ask(pairs, preprocess="true", policy="tpr95")["score"] == "confidence_preprocessed"
    shown = ask(pairs, GREY, preprocess="true", policy="balanced")
    assert (shown["score"], shown["policy"], shown["reason"]) == ("typicality", "balanced", "unsure")
    assert shown["confidence_preprocessed"] is not None


def test_models_show_pairs(pairs: httpx.Client) -> None:
    """/v1/models has both thresholds on both scales, expected refusals by reason, the joint histogram and weights."""
    models = ModelsResponse.model_validate_json(pairs.get("/v1/models").content).model_dump()
    colours, old, single = (model["versions"][0] for model in models["models"])
    policies = colours["pairs"]["policies"]
    assert list(policies) == ["balanced", "foreign_only", "accept_all"]
    balanced = policies["balanced"]
    assert (balanced["familiarity"], balanced["familiarity_raw"]) == (float(sigmoid(FAMILIARITY)), FAMILIARITY)
    assert (balanced["certainty"], balanced["certainty_raw"]) == (0.5, 0.0)
    assert balanced["expected"]["unsure"] == {"rate": 0.1, "interval": (0.05, pytest.approx(0.12))}
    assert (policies["foreign_only"]["certainty"], policies["foreign_only"]["certainty_raw"]) == (0.0, None)
    assert sum(map(sum, colours["pairs"]["joint"]["correct"])) == 116
    assert colours["scores"]["typicality"]["typicality"]["weights"] == {"neighbours": 1.0, "energy": 0.5}
    assert colours["default"] == {"score": None, "policy": "balanced"}
    active = colours["active"]
    assert (active["score"], active["policy"], active["certainty_threshold"]) == ("typicality", "balanced", 0.5)
    assert active["expected_refusals"] == {"unfamiliar": 0.05, "unsure": 0.1}
    assert single["active"]["expected_refusals"] == {"unfamiliar": 0.05, "unsure": 0.0}
    assert (old["pairs"], old["active"]["certainty_threshold"]) == (None, None)


def test_infer_has_reasons(pairs: httpx.Client) -> None:
    """On /v2 accepted, reason, certainty and typicality are outputs, and both thresholds are in the parameters."""
    response = post(pairs, json_request("red", "grey"))
    answer = InferenceResponse.model_validate_json(response.content)
    got = {output.name: (output.datatype, output.data) for output in answer.outputs}
    assert got["accepted"] == ("BOOL", [True, False])
    assert got["reason"] == ("BYTES", ["", "unsure"])
    assert got["in_distribution"] == ("BOOL", [True, True])
    assert got["certainty"][1] == pytest.approx([0.9999092, 1 / 3])
    assert got["typicality"][1] == pytest.approx([ask(pairs)["typicality"], ask(pairs, GREY)["typicality"]])
    assert answer.parameters.model_dump() == {
        "score": "typicality",
        "policy": "balanced",
        "threshold": float(sigmoid(FAMILIARITY)),
        "certainty_threshold": 0.5,
    }
    described = pairs.get("/v2/models/colours").json()["outputs"]
    assert {output["name"] for output in described} == {*got, "confidence_preprocessed"}


def test_infer_with_a_single_score_has_one_threshold(pairs: httpx.Client) -> None:
    """Where one score decides there is no certainty_threshold, and a model without typicality has no such output."""
    answer = post(pairs, json_request("red", parameters={"score": "confidence"})).json()
    assert answer["parameters"].keys() == {"score", "policy", "threshold"}
    old = {output["name"] for output in post(pairs, json_request("red"), model="old").json()["outputs"]}
    assert "typicality" not in old
    assert {"accepted", "reason", "certainty"} <= old
    asked = post(pairs, json_request("red", outputs=[{"name": "typicality"}]), model="old")
    assert asked.status_code == 400
