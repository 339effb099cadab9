"""The OpenAPI document: POST /v1/predict, which is plain ASGI, so that FastAPI cannot describe it; and examples."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, get_args

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.errors import Forbidden, LoadRefused, StateNotSaved, WrongShape
from service.model.images import MEDIA_TYPES
from service.model.scores import ScoreName
from service.serving.gate_changes import GateChange
from service.settings import Settings
from service.web.auth import PROBED_PATHS, PUBLIC_PATHS
from service.web.openapi import examples
from service.web.openapi.infer import SCHEMAS_V2, infer_paths
from service.web.problems import (
    HEAD_TIMEOUT,
    HEAD_TOO_LARGE,
    INTERNAL,
    NOT_HTTP,
    PROBLEMS,
    TOO_MANY_CONNECTIONS,
    Problem,
    problem_body,
)
from service.web.v1.schemas import PredictRequest, PredictResponse, ProblemResponse

SCHEMAS: tuple[type[BaseModel], ...] = (PredictRequest, PredictResponse, ProblemResponse, GateChange)
SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer KEY"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
OF_OTHER_ROUTES = (Forbidden, LoadRefused, StateNotSaved, WrongShape)
OF_PREDICT: tuple[Problem, ...] = (
    *(problem for kind, problem in PROBLEMS.items() if kind not in OF_OTHER_ROUTES),
    *(INTERNAL, NOT_HTTP, HEAD_TIMEOUT, HEAD_TOO_LARGE, TOO_MANY_CONNECTIONS),
)
BINARY = {"type": "string", "format": "binary"}
ANSWER_HEADERS = {
    "X-Request-Id": {"schema": {"type": "string"}, "description": "The request's id: its own, or a new one."},
    "traceparent": {"schema": {"type": "string"}, "description": "Continues the trace that the request came with."},
}


def openapi_of(app: FastAPI, settings: Settings) -> Callable[[], dict[str, Any]]:
    """Replaces `app.openapi`: FastAPI's own document, and the predict route."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, definitions = models_json_schema(
                [(model, "serialization") for model in (*SCHEMAS, *SCHEMAS_V2)],
                ref_template="#/components/schemas/{model}",
            )
            schema["components"]["schemas"] |= definitions["$defs"]
            schema["components"]["securitySchemes"] = SECURITY_SCHEMES
            # {} is "none": whether a key is needed depends on where the service listens.
            schema["security"] = [{}, *({name: []} for name in SECURITY_SCHEMES)]
            schema["paths"] = {"/v1/predict": {"post": _predict(settings)}, **infer_paths(settings), **schema["paths"]}
            _describe_refusals(schema)
            _show_models(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    return document


def _describe_refusals(schema: dict[str, Any]) -> None:
    """What FastAPI cannot know: the refusals of `Auth`, and that a wrong parameter is our 400 and not its own 422."""
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            responses = operation["responses"]
            if "HTTPValidationError" in str(responses.get("422")):
                del responses["422"]
                responses.setdefault("400", _refusal(path, HTTPStatus.BAD_REQUEST))
            if path in PUBLIC_PATHS:
                operation["security"] = []
            else:
                responses.setdefault("401", _refusal(path, HTTPStatus.UNAUTHORIZED))
            if path not in PROBED_PATHS:
                responses.setdefault("421", _refusal(path, HTTPStatus.MISDIRECTED_REQUEST))
                if method != "get":
                    responses.setdefault("403", _refusal(path, HTTPStatus.FORBIDDEN))
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)


def _refusal(path: str, status: HTTPStatus) -> dict[str, Any]:
    """An error in the form that `service.web.problems` gives it on this path."""
    if not path.startswith("/v2"):
        return _problem(status)
    error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    return {"description": status.phrase, "content": {"application/json": {"schema": error}}}


def _predict(settings: Settings) -> dict[str, Any]:
    files = {"type": "array", "items": BINARY, "minItems": 1, "maxItems": settings.max_images}
    return {
        "tags": ["v1"],
        "operationId": "predict",
        "summary": "Classify images, and say which of them the model does not know",
        "description": (
            "Send one image file as the body, many as multipart/form-data files (any field name), or JSON with "
            "base64. Without a Content-Type, or with curl's own, the bytes say what they are. "
            f"At most {settings.max_images} images, {settings.max_body_bytes} bytes, and "
            f"{settings.max_pixels} pixels each."
        ),
        "parameters": _parameters(),
        "requestBody": {
            "required": True,
            "content": {
                **{media_type: {"schema": BINARY} for media_type in sorted(MEDIA_TYPES)},
                "application/octet-stream": {"schema": BINARY},
                "multipart/form-data": {
                    "schema": {"type": "object", "required": ["image"], "properties": {"image": files}}
                },
                "application/json": {"schema": _ref(PredictRequest), "example": examples.REQUEST},
            },
        },
        "responses": {
            "200": {
                "description": "One answer for each image; a refused image has accepted false, and a reason.",
                "headers": ANSWER_HEADERS,
                "content": {"application/json": {"schema": _ref(PredictResponse), "examples": examples.ANSWERS}},
            },
            **{str(status): _problem(status) for status in sorted({problem.status for problem in OF_PREDICT})},
        },
    }


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _problem(status: int) -> dict[str, Any]:
    problems = [problem for problem in OF_PREDICT if problem.status == status]
    shown = {problem.slug: {"summary": problem.title, "value": _example(problem)} for problem in problems}
    response: dict[str, Any] = {
        "description": "; ".join(problem.title for problem in problems),
        "headers": dict(ANSWER_HEADERS),
        "content": {"application/problem+json": {"schema": _ref(ProblemResponse), "examples": shown}},
    }
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        response["headers"]["Retry-After"] = {
            "schema": {"type": "integer"},
            "description": "Seconds to wait before trying again.",
        }
    return response


def _example(problem: Problem) -> dict[str, Any]:
    body = problem_body(problem, examples.DETAILS[problem.slug])
    return {**body, "request_id": examples.REQUEST_ID}


def _show_models(schema: dict[str, Any]) -> None:
    for path, example in (("/v1/models", examples.MODELS), ("/v1/models/{model}", examples.MODEL)):
        schema["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["example"] = example


def _parameters() -> list[dict[str, Any]]:
    whole, truth = {"type": "integer", "minimum": 1}, {"type": "boolean", "default": False}
    query: list[tuple[str, dict[str, Any], str]] = [
        ("model", {"type": "string"}, "Which model; the default_model of /v1/models unless given."),
        ("version", whole, "Which version; the highest unless given."),
        (
            "policy",
            {"type": "string"},
            "Which policy: a pair of thresholds unless score is given; the model's default unless given.",
        ),
        (
            "score",
            {"type": "string", "enum": list(get_args(ScoreName))},
            "A score that decides alone; unless given, what the model's default compares: a score, or a pair of them.",
        ),
        (
            "preprocess",
            truth,
            "Also compute the input-preprocessed score, and gate on it unless score, or a pair by policy, is given.",
        ),
        ("top_k", whole, "Show only the k largest probabilities."),
        ("partial", truth, "Answer the good images where others fail."),
    ]
    headers: list[tuple[str, dict[str, Any], str]] = [
        ("X-Request-Timeout-Ms", {**whole, "maximum": 600_000}, "Time for the answer; 504 after it."),
        ("X-Request-Id", {"type": "string"}, "The request's id, if it has up to 128 of A-Z a-z 0-9 ._:/+=-."),
        ("traceparent", {"type": "string"}, "W3C trace context; the answer continues it."),
    ]
    return [
        {"name": name, "in": place, "required": False, "schema": schema, "description": text}
        for place, items in (("query", query), ("header", headers))
        for name, schema, text in items
    ]
