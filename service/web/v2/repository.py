"""/v2/repository: what could be served, and what is. For administrators only."""

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from service.errors import BodyTimeout, MalformedRequest, NotReady
from service.serving.loader import Repository
from service.settings import Settings
from service.web.bodies import read_whole
from service.web.keys import Caller, require_admin
from service.web.request_context import Lifecycle, context_of
from service.web.v1.query import MAX_VERSION
from service.web.v2.schemas import ErrorResponse, IndexEntry, IndexRequest, RepositoryRequest

MAX_BODY = 10_000

Admin = Annotated[Caller, Depends(require_admin)]
Responses = dict[int | str, dict[str, Any]]
REFUSALS: Responses = {
    400: {"model": ErrorResponse, "description": "The body cannot be understood."},
    401: {"model": ErrorResponse, "description": "No key was given, and one is needed."},
    403: {"model": ErrorResponse, "description": "Only an administrator may do this."},
    408: {"model": ErrorResponse, "description": "The body did not arrive in time."},
    413: {"model": ErrorResponse, "description": f"The body has more than {MAX_BODY} bytes."},
    503: {"model": ErrorResponse, "description": "The service is shutting down."},
}
UNKNOWN: Responses = {404: {"model": ErrorResponse, "description": "There is no such model or version."}}
REFUSED: Responses = {
    409: {"model": ErrorResponse, "description": "The bundle was refused, and why; what was served before goes on."}
}

router = APIRouter(prefix="/v2/repository", tags=["v2 repository"])


def _body(schema: type[Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}}}
    return {"requestBody": {"required": False, "content": content}}


@router.post("/index", responses=REFUSALS, openapi_extra=_body(IndexRequest))
async def index(request: Request, _: Admin) -> list[IndexEntry]:
    """Every version that is served or lies in the models folder."""
    body = await _read_body(request, ("ready",))
    only_ready = body.get("ready", False)
    if not isinstance(only_ready, bool):
        raise MalformedRequest("ready must be true or false")
    repository: Repository = request.app.state.repository
    return [
        IndexEntry(
            name=entry.name,
            version=entry.version,
            state="READY" if entry.ready else "UNAVAILABLE",
            reason=entry.reason,
        )
        for entry in await repository.index()
        if entry.ready or not only_ready
    ]


@router.post(
    "/models/{model}/load",
    responses=REFUSALS | UNKNOWN | REFUSED,
    response_class=Response,
    openapi_extra=_body(RepositoryRequest),
)
async def load(request: Request, model: str, caller: Admin) -> Response:
    """Serves what is in the model's folder now: new and changed versions are verified, warmed up and swapped in,
    versions whose folder is gone are dropped. With parameters.version only that one is loaded."""
    version = await _read_version(request, ())
    _note(request, "load", model, version, caller)
    repository: Repository = request.app.state.repository
    await repository.load(model, version)
    return Response(status_code=200)


@router.post(
    "/models/{model}/unload",
    responses=REFUSALS | UNKNOWN,
    response_class=Response,
    openapi_extra=_body(RepositoryRequest),
)
async def unload(request: Request, model: str, caller: Admin) -> Response:
    """Stops serving a model, or with parameters.version one version of it; requests in flight are answered."""
    # tritonclient always sends unload_dependents; nothing depends on a model here.
    version = await _read_version(request, ("unload_dependents",))
    _note(request, "unload", model, version, caller)
    repository: Repository = request.app.state.repository
    await repository.unload(model, version)
    return Response(status_code=200)


def _note(request: Request, action: str, model: str, version: int | None, caller: Caller) -> None:
    """Into the request's log line: who changes what."""
    context_of(request.scope).log |= {"action": action, "model": model[:80], "version": version, "caller": caller.name}


async def _read_version(request: Request, ignored: tuple[str, ...]) -> int | None:
    body = await _read_body(request, ("parameters",))
    parameters = body.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise MalformedRequest("parameters must be a JSON object")
    unknown = set(parameters) - {"version", *ignored}
    if unknown:
        raise MalformedRequest(f"the parameter {min(unknown)[:60]!r} is unknown; known is version")
    version = parameters.get("version")
    if version is None:
        return None
    # Numbers are what is meant; elsewhere in the protocol versions are strings.
    text = str(version) if type(version) in (int, str) else ""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and 1 <= int(text) <= MAX_VERSION):
        raise MalformedRequest("parameters.version must be a whole number from 1 on")
    return int(text)


async def _read_body(request: Request, known: tuple[str, ...]) -> dict[str, Any]:
    """The JSON of a small body; none at all is an empty object."""
    lifecycle: Lifecycle = request.app.state.lifecycle
    settings: Settings = request.app.state.settings
    if lifecycle.draining:
        raise NotReady("the service is shutting down: nothing is loaded any more")
    length = request.headers.get("content-length")
    try:
        async with asyncio.timeout(settings.body_timeout_ms / 1000):
            text = await read_whole(request.receive, None if length is None else int(length), MAX_BODY)
    except TimeoutError:
        raise BodyTimeout("the request body did not arrive whole in time") from None
    try:
        body = json.loads(text.decode("utf-8")) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"the body is not JSON: {str(error)[:60]}") from error
    if not isinstance(body, dict) or set(body) - set(known):
        raise MalformedRequest(f"the body must be a JSON object with no other field than {', '.join(known)}")
    return body
