"""/docs must work where there is no way out to a CDN."""

import json
import re

import httpx

from service.settings import Settings
from service.web.app import create_app
from service.web.openapi.document import OF_PREDICT
from service.web.openapi.examples import DETAILS
from service.web.v1.schemas import (
    FailedItem,
    ModelInfo,
    ModelsResponse,
    Prediction,
    PredictResponse,
    ProblemResponse,
)


def test_docs_need_nothing_from_elsewhere(client: httpx.Client) -> None:
    """Every script, style and image of /docs is served by the service itself, and the page names no other host."""
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"https?://|[\"']//", page.text)
    assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {asset.rpartition(".")[2] for asset in assets} == {"js", "css", "png"}
    for asset in assets:
        answer = client.get(asset)
        assert answer.status_code == 200
        assert len(answer.content) > 1000
    assert "/openapi.json" in page.text


def test_no_other_file_is_served(client: httpx.Client) -> None:
    """The folder of the assets is all that can be read: no path leads out of it."""
    for path in ("/docs/assets/../core.py", "/docs/assets/%2e%2e/core.py", "/docs/assets/", "/redoc"):
        assert client.get(path).status_code == 404


def test_every_problem_is_documented_with_an_example(client: httpx.Client) -> None:
    """Each status that /v1/predict can answer has, for each of its problem types, an example that fits the schema."""
    responses = client.get("/openapi.json").json()["paths"]["/v1/predict"]["post"]["responses"]
    shown = {
        slug: (int(status), example["value"])
        for status, response in responses.items()
        for slug, example in response["content"].get("application/problem+json", {"examples": {}})["examples"].items()
    }
    assert set(shown) == {problem.slug for problem in OF_PREDICT} == set(DETAILS)
    for slug, (status, example) in shown.items():
        problem = ProblemResponse.model_validate(example)
        assert (problem.status, problem.type) == (status, f"urn:confgate:problem:{slug}")


def test_the_examples_of_answers_fit_the_schema(client: httpx.Client) -> None:
    """The example answers validate, and the example request is answered when it is sent."""
    predict = client.get("/openapi.json").json()["paths"]["/v1/predict"]["post"]
    answers = predict["responses"]["200"]["content"]["application/json"]["examples"]
    kinds = [type(PredictResponse.model_validate(answer["value"]).predictions[-1]) for answer in answers.values()]
    assert kinds == [Prediction, Prediction, Prediction, FailedItem]
    example = predict["requestBody"]["content"]["application/json"]["example"]
    assert client.post("/v1/predict", json=example).json()["predictions"][0]["label"] == "red"


def test_the_examples_of_models_fit_the_schema(client: httpx.Client) -> None:
    """/v1/models is documented with a model that validates and has all that is answered, field by field."""
    document = client.get("/openapi.json").json()
    paths = document["paths"]
    example = paths["/v1/models/{model}"]["get"]["responses"]["200"]["content"]["application/json"]["example"]
    served = client.get("/v1/models/colours").json()
    assert ModelInfo.model_validate(example).model_dump(mode="json") == example
    assert served["versions"][0].keys() == example["versions"][0].keys()
    models = paths["/v1/models"]["get"]["responses"]["200"]["content"]["application/json"]["example"]
    assert ModelsResponse.model_validate(models).models == [ModelInfo.model_validate(example)]
    assert len(json.dumps(models)) < 9000  # most of it is the joint histogram


def test_no_route_promises_an_answer_that_cannot_come(client: httpx.Client) -> None:
    """The statuses of a route are those it can answer, and FastAPI's own errors are not among the schemas."""
    document = client.get("/openapi.json").json()
    paths = document["paths"]
    assert set(paths["/v1/models/{model}"]["get"]["responses"]) == {"200", "400", "401", "404", "421", "503"}
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert "text/plain" in paths["/metrics"]["get"]["responses"]["200"]["content"]


def test_the_document_tells_nothing_of_what_is_loaded(client: httpx.Client) -> None:
    """It needs no key, so it is the same for a service that has no model loaded."""
    document = client.get("/openapi.json")
    empty = create_app(Settings(max_images=8, max_body_bytes=300_000))
    assert document.json() == json.loads(json.dumps(empty.openapi()))
    for version in client.get("/v1/models/colours").json()["versions"]:
        assert version["graphs"]["forward"]["sha256"] not in document.text
    assert "colours" not in document.text
