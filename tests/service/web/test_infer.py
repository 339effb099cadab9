"""/v2 against a real server, asked with tritonclient, the client people already have."""

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from service.model.images import decode
from service.model.manifest import Input
from service.web.v2.schemas import ErrorResponse, InferenceResponse
from tests.conftest import ADMIN, GREEN, LABELS, RED, Service, solid
from tests.service.conftest import HeldService
from tests.service.serving.test_load import hold, wait_for
from tests.service.web.triton_client import OUTPUTS, file_input, json_request, pixels, post, raw_input


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_images_are_answered(asker: triton.InferenceServerClient, binary_in: bool, binary_out: bool) -> None:
    """Many images at once, as binary data or JSON in either direction, are answered in their order."""
    outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in OUTPUTS]
    tensor = raw_input(pixels("red", "grey", "blue"), binary_in)
    result = asker.infer("colours", [tensor], "1", outputs, request_id="order 66")
    answer = result.get_response()
    InferenceResponse.model_validate(answer)
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("colours", "1", "order 66")
    assert answer["parameters"] == {"score": "confidence", "policy": "misclassified", "threshold": 0.5}
    assert [item["name"] for item in answer["outputs"]] == list(OUTPUTS)
    got = {name: result.as_numpy(name) for name in OUTPUTS}
    assert {name: array.shape for name, array in got.items()} == {
        name: (3, *shape[1:]) for name, (_, shape) in OUTPUTS.items()
    }
    assert got["class_id"].dtype == np.int64
    assert got["class_id"][[0, 2]].tolist() == [0, 2]
    labels = [label.decode() if isinstance(label, bytes) else label for label in got["label"]]
    assert [labels[0], labels[2]] == ["red", "blue"]
    assert got["in_distribution"].tolist() == [True, False, True]
    assert got["confidence"] == pytest.approx(1 / (1 + np.exp([-6, 2, -6])), rel=1e-5)
    assert got["probabilities"].sum(axis=1) == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("query", [{}, {"policy": "tpr95"}, {"score": "max_softmax"}, {"preprocess": True}])
@pytest.mark.parametrize("model", ["colours", "plain"])
def test_answers_equal_those_of_v1(
    asker: triton.InferenceServerClient, client: httpx.Client, model: str, query: dict[str, Any]
) -> None:
    """The same image gets the same answer on /v1 and /v2, as a file and as pixels, under every choice."""
    file = solid((200, 90, 30), (13, 9))
    shown = {key: str(value).lower() for key, value in query.items()}
    (wanted,) = client.post("/v1/predict", content=file, params={"model": model, **shown}).json()["predictions"]
    made_for = input_of(client, model)
    for tensor in (file_input(file), raw_input(decode(file, made_for, 10**6)[None])):
        result = asker.infer(model, [tensor], parameters=query)
        decided = result.get_response()["parameters"]
        assert {key: wanted[key] for key in decided} == decided
        assert result.as_numpy("class_id")[0] == wanted["class_id"]
        assert result.as_numpy("label")[0].decode() == wanted["label"]
        assert result.as_numpy("in_distribution")[0] == wanted["in_distribution"]
        assert result.as_numpy("confidence")[0] == np.float32(wanted["confidence"])
        probabilities = np.array([list(wanted["probabilities"].values())], np.float32)
        assert np.array_equal(result.as_numpy("probabilities"), probabilities)
        preprocessed = result.as_numpy("confidence_preprocessed")
        if wanted["confidence_preprocessed"] is None:
            assert preprocessed is None
        else:
            assert preprocessed[0] == np.float32(wanted["confidence_preprocessed"])


def input_of(client: httpx.Client, model: str) -> Input:
    return Input.model_validate(client.get(f"/v1/models/{model}").json()["versions"][0]["input"])


def test_files_of_any_kind_are_answered(asker: triton.InferenceServerClient, client: httpx.Client) -> None:
    """Encoded images of different sizes and formats travel together as BYTES, in binary or as base64 in JSON."""
    files = [RED, solid((0, 255, 0), (50, 20), "JPEG"), solid((0, 0, 255), (3, 3), "WEBP")]
    assert [label.decode() for label in asker.infer("colours", [file_input(*files)]).as_numpy("label")] == list(LABELS)
    data = [base64.b64encode(file).decode() for file in files]
    answer = post(client, {"inputs": [{"name": "image", "shape": [3], "datatype": "BYTES", "data": data}]}).json()
    assert next(item for item in answer["outputs"] if item["name"] == "label")["data"] == list(LABELS)


def test_only_the_outputs_that_were_asked_for(asker: triton.InferenceServerClient) -> None:
    """Outputs are chosen one by one, some in binary and some in JSON; choosing the preprocessed one computes it."""
    outputs = [
        triton.InferRequestedOutput("confidence_preprocessed", binary_data=False),
        triton.InferRequestedOutput("probabilities", class_count=2),
    ]
    result = asker.infer("colours", [raw_input(pixels("green"))], "1", outputs)
    answer = result.get_response()
    assert [item["name"] for item in answer["outputs"]] == ["confidence_preprocessed", "probabilities"]
    assert answer["parameters"]["score"] == "confidence"  # what is asked for does not change what decides
    ((best, second),) = result.as_numpy("probabilities")
    assert best == b"0.999909:1:green"
    assert second.startswith(b"0.000045:")
    # Red stands out by 2/3 of (1 + epsilon).
    assert result.as_numpy("confidence_preprocessed") == pytest.approx(1 / (1 + np.exp(-(12 * 2 / 3 * 1.25 - 2))))


def test_json_may_be_nested(client: httpx.Client) -> None:
    """Data nested as the shape says is read like flat data, and a request without an id gets the request's own."""
    request = json_request("blue")
    request["inputs"][0]["data"] = pixels("blue").tolist()
    response = post(client, {**request, "model_name": "colours", "model_version": "2"})
    assert response.json()["outputs"][1] == {"name": "label", "datatype": "BYTES", "shape": [1], "data": ["blue"]}
    assert response.json()["id"] == response.headers["x-request-id"]


def test_a_version_is_chosen_by_the_path(client: httpx.Client) -> None:
    """/versions/{v}/infer asks that version, and no version the highest."""
    for path, version in (("", "2"), ("/versions/1", "1"), ("/versions/2", "2")):
        response = client.post(f"/v2/models/colours{path}/infer", json=json_request("red"))
        assert response.json()["model_version"] == version


def test_errors_reach_the_client_as_sentences(asker: triton.InferenceServerClient) -> None:
    """tritonclient shows what was wrong: unknown model, wrong shape, wrong type, not an image."""
    good = raw_input(pixels("red"))
    cases = [
        (("nope", [good]), "model 'nope' is not loaded; served are colours, plain"),
        (("colours", [good], "9"), "version 9 of model 'colours' is not loaded; served are 1, 2"),
        (("colours", [raw_input(np.zeros((1, 9, 8, 3), np.uint8))]), r"it must be \[N, 8, 8, 3\]"),
        (("colours", [file_input(b"no image")]), "image 0: the bytes are not a PNG"),
        (("colours", [good], "1", [triton.InferRequestedOutput("logits")]), "there is no output 'logits'; there are"),
    ]
    for arguments, message in cases:
        with pytest.raises(InferenceServerException, match=message):
            asker.infer(*arguments)
    with pytest.raises(InferenceServerException, match="'top_k' is unknown; known are policy, score, preprocess"):
        asker.infer("colours", [good], parameters={"top_k": 3})
    with pytest.raises(InferenceServerException, match="policy 'strict' is unknown; score confidence has"):
        asker.infer("colours", [good], parameters={"policy": "strict"})
    with pytest.raises(InferenceServerException, match="without Content-Encoding"):
        asker.infer("colours", [good], request_compression_algorithm="gzip")


def test_both_protocols_share_batches_counts_and_limits(held_service: HeldService) -> None:
    """/v1 and /v2 images that wait together are computed together, and are counted and shed alike."""
    client = held_service.client
    with ThreadPoolExecutor(3) as pool:
        first = hold(held_service, pool)
        other = pool.submit(client.post, "/v1/predict", content=GREEN, headers={"Content-Type": "image/png"})
        asked = pool.submit(post, client, json_request("blue", "grey"))
        wait_for(lambda: held_service.model.queues["forward"].images == 3)
        late = post(client, json_request("red"), **{"X-Request-Timeout-Ms": "30"})
        assert late.status_code == 504
        assert late.json() == {"error": "no answer within 30 ms"}
        held_service.held.go_on.set()
        assert first.result().status_code == other.result().status_code == asked.result().status_code == 200
    assert held_service.held.batches == [1, 3]
    assert post(client, {"inputs": []}).status_code == 400
    route = {"route": "/v2/models/{model}/infer"}
    assert held_service.metric("confgate_requests_total", **route, outcome="ok") == 1
    assert held_service.metric("confgate_requests_total", **route, outcome="timeout") == 1
    assert held_service.metric("confgate_requests_total", **route, outcome="invalid") == 1
    assert held_service.metric("confgate_request_duration_seconds_count", **route) == 3
    assert held_service.metric("confgate_predictions_total", decision="accepted") == 3
    assert held_service.metric("confgate_predictions_total", decision="rejected") == 1


@pytest.mark.parametrize("held_service", [{"max_queue_images": 2, "max_images": 2}], indirect=True)
def test_v2_sheds_and_drains_like_v1(held_service: HeldService) -> None:
    """A full queue is 429 with Retry-After, a draining service 503, each with its sentence in `error`."""
    client = held_service.client
    with ThreadPoolExecutor(2) as pool:
        first = hold(held_service, pool)
        waiting = pool.submit(post, client, json_request("blue", "grey"))
        wait_for(lambda: held_service.model.queues["forward"].images == 2)
        shed = post(client, json_request("red"))
        assert shed.status_code == 429
        assert int(shed.headers["retry-after"]) >= 1
        assert "there is room for 2" in shed.json()["error"]
        held_service.server.handle_exit(15, None)
        for refused in (post(client, json_request("red")), client.get("/v2/models/colours/ready")):
            assert refused.status_code == 503
            assert "shutting down" in refused.json()["error"]
        assert client.post("/v2/repository/models/colours/load", headers=ADMIN).status_code == 503
        held_service.held.go_on.set()
        assert first.result().status_code == waiting.result().status_code == 200


def test_a_request_is_logged_like_one_of_v1(client: httpx.Client, service: Service) -> None:
    """The log has model, version, images, decisions and policy of an infer request."""
    post(client, json_request("red", "grey"), **{"X-Request-Id": "oip-log-1"})
    client.get("/v1/models", headers={"X-Request-Id": "oip-log-2"})
    service.wait_for_line("oip-log-2")
    (line,) = [line for line in service.log() if line.get("request_id") == "oip-log-1"]
    told = {"model": "colours", "version": 2, "images": 2, "rejected": 1, "policy": "misclassified", "status": 200}
    assert line.items() >= told.items()


def test_a_slash_too_many_leads_to_the_route(client: httpx.Client) -> None:
    """As on all other routes."""
    response = client.post("/v2/models/colours/versions/1/infer/", follow_redirects=False)
    assert response.status_code == 307
    assert response.headers["location"].endswith("/v2/models/colours/versions/1/infer")


def test_other_answers_are_errors_too(client: httpx.Client) -> None:
    """No such path or method, no such model, and a version that is no number are {"error"} on /v2."""
    for method, path, status in (
        ("GET", "/v2/nope", 404),
        ("GET", "/v2/models/colours/infer", 405),
        ("PUT", "/v2/models/colours/versions/1/infer", 405),
        ("POST", "/v2/models/colours/x/infer", 404),
        ("GET", "/v2/models/nope", 404),
        ("GET", "/v2/models/colours/versions/x/ready", 400),
        ("POST", "/v2/models/colours/versions/0/infer", 400),
        ("POST", "/v2/models/colours/infer?policy=tpr95", 400),
        ("POST", "/v2/models/../infer", 404),
        ("POST", "/v2/models/..%2fcolours/infer", 404),
    ):
        response = client.request(method, path)
        assert response.status_code == status, path
        assert ErrorResponse.model_validate(response.json()).error
