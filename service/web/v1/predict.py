"""POST /v1/predict: reads the query and the images, and writes the answer as JSON."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from pydantic_core import to_json
from starlette.datastructures import URL
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import MalformedRequest, RequestError
from service.model.gate import Decision, Gate
from service.serving.metrics import PREDICT_ROUTE
from service.serving.served_model import Model
from service.web.answers import JSON, whole_answer
from service.web.bodies import read_images
from service.web.inference_endpoint import InferenceEndpoint
from service.web.parameters import MAX_VERSION, truth_value, whole_number
from service.web.problems import problem_body, problem_of, route_problem

PARAMETERS = ("model", "version", "policy", "score", "preprocess", "top_k", "partial")


class PredictEndpoint:
    """Answers /v1/predict, and passes every other path on to the framework.

    It stands in front of the framework because the framework's layers would cost this route as much again.
    """

    def __init__(self, endpoint: InferenceEndpoint, otherwise: ASGIApp) -> None:
        self._endpoint = endpoint
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path")
        if path == PREDICT_ROUTE and scope["method"] == "POST":
            await self._predict(scope, receive, send)
        elif path == PREDICT_ROUTE:
            await route_problem(scope, 405, {"Allow": "POST"})(scope, receive, send)
        elif path == f"{PREDICT_ROUTE}/":
            # As the framework does it for all other routes.
            await RedirectResponse(URL(scope=scope).replace(path=PREDICT_ROUTE))(scope, receive, send)
        else:
            await self._otherwise(scope, receive, send)

    async def _predict(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._endpoint.begin(scope, receive) as exchange:
            query = read_query(scope["query_string"])
            headers = exchange.read_headers()
            model = exchange.choose_model(query.model, query.version)
            with exchange.deadline() as deadline:
                gate = model.choose_gate(query.score, query.policy, query.preprocess)
                images, file_names = await read_images(
                    scope, exchange.receive, headers.content_type, headers.content_length, self._endpoint.limits
                )
                exchange.file_names = file_names
                decisions = await exchange.predict(
                    deadline, model, gate, images, preprocess=query.preprocess, partial=query.partial
                )
            body = {"id": exchange.request_id, "model": model.manifest.name, "version": model.manifest.version}
            answers = [answer(model, gate, query.top_k, decision) for decision in decisions]
            if file_names is not None:
                answers = [{**item, "file_name": name} for item, name in zip(answers, file_names, strict=True)]
            exchange.answer = whole_answer(to_json({**body, "predictions": answers}), JSON)
        await exchange.send_answer(scope, receive, send)


@dataclass(slots=True)
class Query:
    """The query of a request to /v1/predict, checked."""

    model: str | None = None
    version: int | None = None
    policy: str | None = None
    score: str | None = None
    preprocess: bool = False
    top_k: int | None = None
    partial: bool = False


def read_query(raw: bytes) -> Query:
    """MalformedRequest names the parameter that is unknown, repeated, empty or wrong."""
    if not raw:
        return Query()
    given: dict[str, str] = {}
    try:
        pairs = parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=len(PARAMETERS))
    except ValueError as error:
        raise MalformedRequest(f"the query has more than {len(PARAMETERS)} parameters") from error
    for name, value in pairs:
        if name not in PARAMETERS:
            raise MalformedRequest(f"the query parameter {name!r} is unknown; known are {', '.join(PARAMETERS)}")
        if name in given:
            raise MalformedRequest(f"the query parameter {name!r} is given twice")
        if not value:
            raise MalformedRequest(f"the query parameter {name!r} has no value")
        given[name] = value
    version, top_k = given.get("version"), given.get("top_k")
    return Query(
        model=given.get("model"),
        version=None if version is None else whole_number("version", version, MAX_VERSION),
        policy=given.get("policy"),
        score=given.get("score"),
        preprocess=truth_value("preprocess", given.get("preprocess")),
        top_k=None if top_k is None else whole_number("top_k", top_k, 2**31),
        partial=truth_value("partial", given.get("partial")),
    )


def answer(model: Model, gate: Gate, top_k: int | None, decision: Decision | RequestError) -> dict[str, Any]:
    """One image's part of the response."""
    if isinstance(decision, RequestError):
        return {"error": problem_body(problem_of(decision), decision.detail, decision.index)}
    manifest, reading = model.manifest, decision.reading
    labels, probabilities, scores = manifest.labels, reading.probabilities, reading.scores
    if top_k is None:
        shown = dict(zip(labels, probabilities, strict=True))
    else:
        ranked = sorted(range(len(labels)), key=probabilities.__getitem__, reverse=True)
        shown = {labels[i]: probabilities[i] for i in ranked[:top_k]}
    preprocessed = manifest.preprocessed_score
    computed = scores.get(preprocessed) if preprocessed is not None else None
    return {
        "class_id": reading.class_id,
        "label": labels[reading.class_id],
        "probabilities": shown,
        "confidence": scores["confidence" if manifest.has_confidence else "max_softmax"][1],
        "confidence_preprocessed": computed and computed[1],
        "typicality": scores["typicality"][1] if "typicality" in scores else None,
        "certainty": reading.certainty,
        "accepted": decision.accepted,
        "reason": decision.reason,
        "in_distribution": decision.in_distribution,
        "score": gate.score,
        "score_value": scores[gate.score][1],
        "policy": gate.policy,
        "threshold": gate.threshold_shown,
        "certainty_threshold": gate.certainty_threshold_shown,
    }
