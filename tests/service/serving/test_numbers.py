"""Outputs that are not finite: the image they belong to fails, and no other is answered or counted wrongly."""

import json
import math
from typing import Any, NoReturn

import httpx
import numpy as np
import pytest

from service.model.images import Pixels
from service.model.scores import Outputs
from tests.conftest import GREY, RED, solid
from tests.service.conftest import HeldService

SPOILT = 13  # the brightness of the image whose outputs are spoilt
BAD = solid((SPOILT, SPOILT, SPOILT))
WHY = "the model's outputs for this image are not finite"
NOT_FINITE = [
    ("logits", math.nan),
    ("logits", math.inf),
    ("logits", -math.inf),
    ("confidence_logit", math.nan),
    ("confidence_logit", math.inf),
]


def spoil(service: HeldService, output: str, number: float) -> None:
    """From now on the model returns this number for one class, or the score, of every image of brightness SPOILT."""
    real = service.held.run

    def run(images: Pixels) -> Outputs:
        outputs = {name: np.array(rows) for name, rows in real(images).items()}
        rows = outputs[output].reshape(len(images), -1)
        rows[images[:, 0, 0, 0] == SPOILT, -1] = number
        return outputs

    service.held.run = run  # type: ignore[method-assign]


def post(service: HeldService, *images: bytes, **query: str) -> httpx.Response:
    files = [("image", (f"{place}.png", image, "image/png")) for place, image in enumerate(images)]
    return service.client.post("/v1/predict", files=files, params=query)


def read(response: httpx.Response) -> Any:
    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(response.content, parse_constant=refuse)


def counted(service: HeldService) -> tuple[float, float, float]:
    """Accepted and rejected images, and images in the histogram of the confidence, whose sum is always a number."""
    assert math.isfinite(service.metric("confgate_confidence_sum", score="confidence"))
    return (
        service.metric("confgate_predictions_total", decision="accepted"),
        service.metric("confgate_predictions_total", decision="rejected"),
        service.metric("confgate_confidence_count", score="confidence"),
    )


@pytest.mark.parametrize("score", ["confidence", "max_softmax"])
@pytest.mark.parametrize(("output", "number"), NOT_FINITE)
def test_with_partial_only_the_image_itself_fails(
    held_service: HeldService, output: str, number: float, score: str
) -> None:
    """One image has the error, the others their answers and counts, also where another score decides."""
    spoil(held_service, output, number)
    response = post(held_service, RED, BAD, GREY, partial="true", score=score)
    assert response.status_code == 200
    first, bad, last = read(response)["predictions"]
    assert (first["label"], first["in_distribution"], last["in_distribution"]) == ("red", True, False)
    assert (bad["error"]["type"], bad["error"]["index"]) == ("urn:confgate:problem:inference-failed", 1)
    assert bad["error"]["detail"] == WHY
    assert counted(held_service) == (1, 1, 2)


@pytest.mark.parametrize("score", ["confidence", "max_softmax"])
@pytest.mark.parametrize(("output", "number"), NOT_FINITE)
def test_without_partial_the_request_fails_and_nothing_is_counted(
    held_service: HeldService, output: str, number: float, score: str
) -> None:
    """The request fails with the image's place, and none of its images is counted; the next request is."""
    spoil(held_service, output, number)
    response = post(held_service, RED, BAD, GREY, score=score)
    assert response.status_code == 500
    assert (read(response)["index"], read(response)["detail"]) == (1, WHY)
    assert counted(held_service) == (0, 0, 0)
    assert held_service.metric("confgate_requests_total", route="/v1/predict", outcome="error") == 1
    assert post(held_service, RED, GREY).status_code == 200
    assert counted(held_service) == (1, 1, 2)


@pytest.mark.parametrize(("output", "number"), NOT_FINITE)
def test_infer_fails_and_counts_nothing(held_service: HeldService, output: str, number: float) -> None:
    """On /v2 the request fails as a whole, with the image's place, and none of its images is counted."""
    spoil(held_service, output, number)
    data = [255, 0, 0] * 64 + [SPOILT] * 192 + [128] * 192
    tensor = {"name": "image", "shape": [3, 8, 8, 3], "datatype": "UINT8", "data": data}
    body = {"inputs": [tensor], "parameters": {"score": "max_softmax"}}
    response = held_service.client.post("/v2/models/colours/infer", json=body)
    assert response.status_code == 500
    assert read(response) == {"error": f"image 1: {WHY}"}
    assert counted(held_service) == (0, 0, 0)


def test_numbers_that_are_large_and_finite_are_answered(held_service: HeldService) -> None:
    """The largest float32 is a number like any other."""
    spoil(held_service, "logits", float(np.finfo(np.float32).max))
    (answer,) = read(post(held_service, BAD))["predictions"]
    assert (answer["label"], answer["probabilities"]) == ("blue", {"red": 0.0, "green": 0.0, "blue": 1.0})
