"""POST /v1/predict and GET /v1/models against a real server."""

import base64
import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from service.model.bundle import load_bundle
from service.model.images import decode
from service.model.scores import log_odds_of_max, sigmoid, softmax
from service.model.session import open_session
from service.web.v1.schemas import ModelsResponse, PredictResponse, ProblemResponse
from tests.conftest import BLUE, GREEN, GREY, LABELS, RED, make_bundle, solid

PNG = {"Content-Type": "image/png"}


def ask(client: httpx.Client, image: bytes = RED, **query: object) -> dict[str, Any]:
    response = client.post("/v1/predict", content=image, headers=PNG, params=query)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_known_image_is_answered_in_full(client: httpx.Client) -> None:
    """A raw image in the body is answered with every field of the design, and passes the gate."""
    answer = ask(client, version=1)
    assert answer.keys() == {"id", "model", "version", "predictions"}
    assert (answer["model"], answer["version"]) == ("colours", 1)
    (prediction,) = answer["predictions"]
    probabilities = prediction.pop("probabilities")
    assert probabilities == pytest.approx({"red": 0.99990921, "green": 4.54e-5, "blue": 4.54e-5}, rel=1e-3)
    assert prediction.pop("certainty") == probabilities["red"]
    assert prediction.pop("confidence") == prediction.pop("score_value") == pytest.approx(1 / (1 + math.exp(-6)))
    assert prediction == {
        "class_id": 0,
        "label": "red",
        "confidence_preprocessed": None,
        "typicality": None,
        "accepted": True,
        "reason": None,
        "in_distribution": True,
        "score": "confidence",
        "policy": "misclassified",
        "threshold": 0.5,
        "certainty_threshold": None,
    }


def test_an_unknown_image_is_refused_with_200(client: httpx.Client) -> None:
    """A refused image is an answer like any other: HTTP 200 with accepted false, and why."""
    (prediction,) = ask(client, GREY)["predictions"]
    assert (prediction["accepted"], prediction["in_distribution"], prediction["reason"]) == (False, False, "unfamiliar")
    (prediction,) = ask(client, GREY, score="max_softmax")["predictions"]
    assert (prediction["accepted"], prediction["in_distribution"], prediction["reason"]) == (False, False, "unsure")
    assert prediction["confidence"] == pytest.approx(1 / (1 + math.exp(2)))


def test_many_files_are_answered_in_their_order(client: httpx.Client) -> None:
    """A multipart request with many files gives one list of answers in the order of the files."""
    files = [("f", (f"{i}.png", image)) for i, image in enumerate((RED, GREEN, BLUE, GREY))]
    predictions = client.post("/v1/predict", files=files).json()["predictions"]
    assert [item["label"] for item in predictions[:3]] == list(LABELS)
    assert [item["in_distribution"] for item in predictions] == [True, True, True, False]


def test_json_with_base64_is_answered(client: httpx.Client) -> None:
    """A JSON body with base64 images is answered like the same images as files."""
    images = [base64.b64encode(image).decode() for image in (BLUE, GREEN)]
    predictions = client.post("/v1/predict", json={"images": images}).json()["predictions"]
    assert [item["label"] for item in predictions] == ["blue", "green"]


def test_answers_equal_onnx_runtime_bit_for_bit(client: httpx.Client, tmp_path: Path) -> None:
    """What is answered over HTTP is what ONNX Runtime gives for the same image, to the last bit."""
    bundle = load_bundle(make_bundle(tmp_path / "models").folder)
    session = open_session(bundle, "perturbed", "cpu")
    rng = np.random.default_rng(0)
    for _ in range(20):
        image = solid(tuple(int(v) for v in rng.integers(0, 256, 3)), (13, 9))
        outputs = session.run(decode(image, bundle.manifest.input, 10**6)[None])
        (got,) = ask(client, image, version=1, preprocess="true")["predictions"]
        assert got["confidence"] == sigmoid(outputs["confidence_logit"])[0]
        assert got["confidence_preprocessed"] == sigmoid(outputs["confidence_logit_preprocessed"])[0]
        assert list(got["probabilities"].values()) == softmax(outputs["logits"])[0].tolist()


def test_preprocess_gates_on_its_own_score_and_threshold(client: httpx.Client) -> None:
    """preprocess=true runs the perturbed graph and gates on confidence_preprocessed."""
    (prediction,) = ask(client, preprocess="true")["predictions"]
    assert prediction["score"] == "confidence_preprocessed"
    assert prediction["confidence_preprocessed"] == prediction["score_value"] == pytest.approx(1 / (1 + math.exp(-8)))
    assert prediction["threshold"] == pytest.approx(1 / (1 + math.exp(-0.5)))


def test_preprocess_with_a_score_gates_on_that_score(client: httpx.Client) -> None:
    """With preprocess=true and a score, the preprocessed confidence is shown and the named score decides."""
    (prediction,) = ask(client, preprocess="true", score="confidence")["predictions"]
    assert prediction["score"] == "confidence"
    assert prediction["confidence_preprocessed"] is not None


def test_score_and_policy_choose_the_gate(client: httpx.Client) -> None:
    """The same image passes one policy and fails a stricter one of the score that was asked for."""
    dim = solid((100, 0, 0))
    (lax,) = ask(client, dim, score="max_softmax", policy="misclassified", version=1)["predictions"]
    (strict,) = ask(client, dim, score="max_softmax", policy="tpr95", version=1)["predictions"]
    assert (lax["in_distribution"], strict["in_distribution"]) == (True, False)
    expected = sigmoid(log_odds_of_max([[10 * 100 / 255, 0, 0]]))[0]
    assert lax["score_value"] == strict["score_value"] == pytest.approx(expected)
    assert (lax["threshold"], strict["threshold"]) == pytest.approx((1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-5))))


def test_temperature_changes_probabilities_and_not_the_gate(client: httpx.Client) -> None:
    """Two versions that differ only in temperature show other probabilities and the same scores."""
    (one,), (two,) = (ask(client, version=v, score="max_softmax")["predictions"] for v in (1, 2))
    assert one["probabilities"]["red"] > two["probabilities"]["red"] > 0.9
    assert one["score_value"] == two["score_value"]


def test_the_highest_version_is_the_default(client: httpx.Client) -> None:
    """A request that names no version is answered by the highest."""
    assert ask(client)["version"] == 2


def test_top_k_shows_the_largest_probabilities_first(client: httpx.Client) -> None:
    """top_k=2 shows two labels, the larger first."""
    (prediction,) = ask(client, solid((0, 50, 200)), top_k=2)["predictions"]
    assert list(prediction["probabilities"]) == ["blue", "green"]


def test_a_plain_classifier_is_gated_on_max_softmax(client: httpx.Client) -> None:
    """Without a confidence branch the largest softmax is the confidence, and ODIN the preprocessed one."""
    (plain,) = ask(client, model="plain")["predictions"]
    assert plain["score"] == "max_softmax"
    assert plain["confidence"] == pytest.approx(plain["probabilities"]["red"])
    (odin,) = ask(client, model="plain", preprocess="true")["predictions"]
    assert odin["score"] == "odin"
    expected = sigmoid(log_odds_of_max([[12.5, 0, 0]], 10.0))[0]
    assert odin["confidence_preprocessed"] == pytest.approx(expected, rel=1e-6)


def test_models_tell_what_is_served(client: httpx.Client) -> None:
    """/v1/models names versions, labels, input, scores, policies, evaluation, device and hashes."""
    models = client.get("/v1/models").json()
    assert models["default_model"] == "colours"
    assert [model["name"] for model in models["models"]] == ["colours", "plain"]
    colours = client.get("/v1/models/colours").json()
    assert colours == models["models"][0]
    assert colours["default_version"] == 2
    version = colours["versions"][0]
    assert version["labels"] == list(LABELS)
    assert version["device"] == {"requested": "cpu", "active": "cpu"}
    policy = version["scores"]["confidence"]["policies"]["tpr95"]
    assert policy["threshold_raw"] == 4.0
    assert policy["threshold"] == pytest.approx(1 / (1 + math.exp(-4)))
    assert policy["expected_rejection_rate"] == 0.05
    assert version["evaluation"][0]["n"] == 300
    assert len(version["graphs"]["perturbed"]["sha256"]) == 64


def test_partial_answers_the_good_images(client: httpx.Client) -> None:
    """With partial=true a bad image has its own error in its place, and the others are answered."""
    files = [("f", ("a", RED)), ("f", ("b", b"not an image")), ("f", ("c", BLUE))]
    response = client.post("/v1/predict", files=files, params={"partial": "true"})
    assert response.status_code == 200
    first, bad, last = response.json()["predictions"]
    assert (first["label"], last["label"]) == ("red", "blue")
    assert bad["error"]["status"] == 422
    assert bad["error"]["index"] == 1


def test_partial_with_nothing_good_is_still_an_answer(client: httpx.Client) -> None:
    """With partial=true a request whose images are all bad gets their errors, and no place in a batch."""
    response = client.post("/v1/predict", json={"images": ["!", 7]}, params={"partial": "true"})
    assert [item["error"]["status"] for item in response.json()["predictions"]] == [422, 422]


def test_health_is_answered(client: httpx.Client) -> None:
    """A service with its models loaded is live and ready."""
    assert client.get("/v2/health/live").status_code == 200
    assert client.get("/v2/health/ready").status_code == 200


def test_answers_are_as_openapi_describes_them(client: httpx.Client) -> None:
    """Real answers have exactly the fields that the document promises."""
    files = [("f", ("a", RED)), ("f", ("b", b"bad")), ("f", ("c", GREY))]
    response = client.post("/v1/predict", files=files, params={"partial": "true", "preprocess": "true"})
    answer = PredictResponse.model_validate_json(response.content)
    assert [type(item).__name__ for item in answer.predictions] == ["Prediction", "FailedItem", "Prediction"]
    PredictResponse.model_validate_json(client.post("/v1/predict", content=RED, headers=PNG).content)
    ProblemResponse.model_validate_json(client.post("/v1/predict", files=files).content)
    ModelsResponse.model_validate_json(client.get("/v1/models").content)


def test_docs_and_openapi_describe_predict(client: httpx.Client) -> None:
    """The OpenAPI document has the predict route with its body types, parameters and every error status."""
    document = client.get("/openapi.json").json()
    predict = document["paths"]["/v1/predict"]["post"]
    assert {"image/png", "multipart/form-data", "application/json"} <= predict["requestBody"]["content"].keys()
    assert set(predict["responses"]) == {
        "200",
        "400",
        "401",
        "403",
        "404",
        "408",
        "413",
        "415",
        "421",
        "422",
        "429",
        "431",
        "500",
        "503",
        "504",
    }
    assert client.get("/docs").status_code == 200
