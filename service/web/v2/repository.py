"""/v2/repository: the models that could be served, and those that are. For administrators only."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from service.errors import MalformedRequest, NotReady
from service.serving.lifecycle import Lifecycle
from service.serving.loader import Loader
from service.web.auth import require_admin
from service.web.json_bodies import MAX_JSON_BYTES, Body, read_json
from service.web.keys import Caller
from service.web.parameters import MAX_VERSION, whole_number
from service.web.request_context import context_of
from service.web.v2.schemas import ErrorResponse, IndexEntry, IndexRequest, RepositoryRequest

Admin = Annotated[Caller, Depends(require_admin)]
Responses = dict[int | str, dict[str, Any]]
REFUSALS: Responses = {
    400: {"model": ErrorResponse, "description": "The body cannot be understood."},
    401: {"model": ErrorResponse, "description": "No key was given, and one is needed."},
    403: {"model": ErrorResponse, "description": "Only an administrator may do this."},
    408: {"model": ErrorResponse, "description": "The body did not arrive in time."},
    413: {"model": ErrorResponse, "description": f"The body has more than {MAX_JSON_BYTES} bytes."},
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
    asked = await _read(request, IndexRequest, '{"ready": true or false}, or no body')
    loader: Loader = request.app.state.loader
    return [
        IndexEntry(
            name=entry.name,
            version=entry.version,
            state="READY" if entry.ready else "UNAVAILABLE",
            reason=entry.reason,
        )
        for entry in await loader.index()
        if entry.ready or not asked.ready
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
    version = await _read_version(request, unloads=False)
    _note(request, "load", model, version, caller)
    loader: Loader = request.app.state.loader
    await loader.load(model, version)
    return Response(status_code=200)


@router.post(
    "/models/{model}/unload",
    responses=REFUSALS | UNKNOWN,
    response_class=Response,
    openapi_extra=_body(RepositoryRequest),
)
async def unload(request: Request, model: str, caller: Admin) -> Response:
    """Stops serving a model, or with parameters.version one version of it; requests in flight are answered."""
    version = await _read_version(request, unloads=True)
    _note(request, "unload", model, version, caller)
    loader: Loader = request.app.state.loader
    await loader.unload(model, version)
    return Response(status_code=200)


def _note(request: Request, action: str, model: str, version: int | None, caller: Caller) -> None:
    """Adds to the request's log line who changes what."""
    context_of(request.scope).log |= {"action": action, "model": model[:80], "version": version, "caller": caller.name}


async def _read_version(request: Request, *, unloads: bool) -> int | None:
    """The one version that a request names, or None for all."""
    body = await _read(request, RepositoryRequest, '{"parameters": {"version": a whole number}}, or no body')
    parameters = body.parameters
    if parameters is None:
        return None
    # tritonclient always sends unload_dependents with unload; nothing depends on a model here.
    if not unloads and "unload_dependents" in parameters.model_fields_set:
        raise MalformedRequest("the parameter 'unload_dependents' is unknown; known is version")
    # A number is what is meant; elsewhere in the protocol versions are strings.
    return (
        None if parameters.version is None else whole_number("parameters.version", str(parameters.version), MAX_VERSION)
    )


async def _read(request: Request, kind: type[Body], expected: str) -> Body:
    lifecycle: Lifecycle = request.app.state.lifecycle
    if lifecycle.draining:
        raise NotReady("the service is shutting down: nothing is loaded any more")
    return await read_json(request, kind, expected, optional=True)
