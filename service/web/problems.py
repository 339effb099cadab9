"""Errors as HTTP answers: problem+json (RFC 9457) on /v1, {"error"} on /v2."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Scope

from service import errors
from service.web.request_context import context_of


@dataclass(frozen=True, slots=True)
class Problem:
    status: int
    slug: str
    title: str

    @property
    def type(self) -> str:
        return f"urn:confgate:problem:{self.slug}"


INTERNAL = Problem(500, "internal", "The service made a mistake")
# Answers of `service.web.uvicorn_protocol`, before the application is called.
NOT_HTTP = Problem(400, "malformed-http", "The request is not HTTP")
HEAD_TIMEOUT = Problem(408, "head-timeout", "The request's head did not arrive in time")
HEAD_TOO_LARGE = Problem(431, "head-too-large", "The request's head is larger than is allowed")
TOO_MANY_CONNECTIONS = Problem(503, "too-many-connections", "Too many connections are in use")
PROBLEMS: dict[type[errors.RequestError], Problem] = {
    errors.MalformedRequest: Problem(400, "malformed-request", "The request cannot be understood"),
    errors.Unauthorised: Problem(401, "unauthorised", "An API key is needed"),
    errors.Forbidden: Problem(403, "forbidden", "This key may not do that"),
    errors.CrossSite: Problem(403, "cross-site", "A web page of another site sent the request"),
    errors.UnknownModel: Problem(404, "unknown-model", "No such model is loaded"),
    errors.BodyTimeout: Problem(408, "body-timeout", "The request body did not arrive in time"),
    errors.LoadRefused: Problem(409, "load-refused", "The bundle was refused"),
    errors.TooLarge: Problem(413, "too-large", "The request is larger than is allowed"),
    errors.UnsupportedType: Problem(415, "unsupported-type", "The content type is not served"),
    errors.InvalidImage: Problem(422, "invalid-image", "The image cannot be decoded"),
    errors.WrongShape: Problem(422, "wrong-shape", "The tensor has the wrong shape"),
    errors.WrongHost: Problem(421, "wrong-host", "The request names another host"),
    errors.QueueFull: Problem(429, "queue-full", "Too much is waiting already"),
    errors.MemoryBudgetExceeded: Problem(429, "memory-budget", "Too much is in memory already"),
    errors.InferenceFailed: Problem(500, "inference-failed", "The model failed"),
    errors.StateNotSaved: Problem(500, "state-not-saved", "The change could not be saved"),
    errors.GraphUnavailable: Problem(503, "graph-unavailable", "The graph for preprocessed scores cannot be opened"),
    errors.NotReady: Problem(503, "not-ready", "The service is not taking requests"),
    errors.DeadlineExceeded: Problem(504, "deadline-exceeded", "The answer would come too late"),
}
# These answers may leave a body unread, whose rest would be taken for the next request on the connection.
UNREAD_BODY = (errors.TooLarge, errors.BodyTimeout, errors.MemoryBudgetExceeded)


def problem_of(error: errors.RequestError) -> Problem:
    return PROBLEMS[type(error)]


def problem_body(problem: Problem, detail: str, index: int | None = None) -> dict[str, Any]:
    body = {"type": problem.type, "title": problem.title, "status": problem.status, "detail": detail}
    return body if index is None else {**body, "index": index}


def error_response(
    error: errors.RequestError, path: str, request_id: str, members: Mapping[str, str | None] | None = None
) -> Response:
    """The answer to a request that failed; `members` are further members of a problem."""
    headers = {}
    if isinstance(error, errors.QueueFull):
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, errors.Unauthorised):
        headers["WWW-Authenticate"] = 'Bearer realm="confgate"'
    if isinstance(error, UNREAD_BODY):
        headers["Connection"] = "close"
    return problem_response(problem_of(error), error.detail, path, request_id, error.index, headers, members)


def route_problem(scope: Scope, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """There is no such path, or not with this method."""
    phrase, path = HTTPStatus(status).phrase, scope["path"]
    problem = Problem(status, phrase.lower().replace(" ", "-"), phrase)
    detail = f"{scope['method']} {path}: {phrase.lower()}; /docs lists what there is"
    return problem_response(problem, detail, path, context_of(scope).request_id, headers=dict(headers or {}))


def problem_response(
    problem: Problem,
    detail: str,
    path: str,
    request_id: str,
    index: int | None = None,
    headers: dict[str, str] | None = None,
    members: Mapping[str, str | None] | None = None,
) -> Response:
    if path.startswith("/v2"):
        said = detail if index is None else f"image {index}: {detail}"
        content, media_type = to_json({"error": said}), "application/json"
    else:
        content = to_json({**problem_body(problem, detail, index), **(members or {}), "request_id": request_id})
        media_type = "application/problem+json"
    return Response(content, problem.status, headers, media_type)
