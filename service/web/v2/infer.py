"""The /v2 routes (Open Inference Protocol): health, metadata, infer. Live is not ready: a draining service is alive
and takes nothing new. Loading and unloading are in `service.web.v2.repository`."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope

from service.errors import MalformedRequest, NotReady, RequestError, UnsupportedType
from service.serving.metrics import INFER_ROUTE
from service.serving.predictor import Decision, Model
from service.serving.registry import Registry
from service.web.bodies import SMALL_JSON, read_whole
from service.web.inference_endpoint import Endpoint, Question
from service.web.request_context import Lifecycle
from service.web.v1.query import MAX_VERSION, Head, read_sent, whole
from service.web.v2.request import INPUT, InferRequest, read_infer
from service.web.v2.response import infer_response, specs_of
from service.web.v2.schemas import ErrorResponse, ModelMetadata, ModelReady, ServerMetadata, TensorMetadata

INFER_ROUTES = (INFER_ROUTE, "/v2/models/{model}/versions/{version}/infer")
EXTENSIONS = ["binary_tensor_data", "classification", "model_repository"]
MAX_HEADER_LENGTH = 2**40
NOT_LOADED: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "The version is no whole number."},
    404: {"model": ErrorResponse, "description": "Not loaded."},
}
NOT_READY = NOT_LOADED | {503: {"model": ErrorResponse, "description": "The service is shutting down."}}

router = APIRouter(prefix="/v2", tags=["v2"])


@dataclass(slots=True)
class InferHead(Head):
    header_length: int | None


class InferEndpoint(Endpoint[InferHead, InferRequest]):
    """POST /v2/models/{model}[/versions/{version}]/infer."""

    route = INFER_ROUTE

    def read_head(self, scope: Scope, started: float) -> InferHead:
        if scope["query_string"]:
            raise MalformedRequest("this route takes no query: options go into the request's parameters")
        header_length = None
        for name, value in scope["headers"]:
            if name == b"inference-header-content-length":
                header_length = whole("Inference-Header-Content-Length", value.decode("latin-1"), MAX_HEADER_LENGTH)
            elif name == b"content-encoding" and value.lower() != b"identity":
                raise UnsupportedType("compressed bodies are not served: send the request without Content-Encoding")
        path = scope["path_params"]
        version = whole("version", path["version"], MAX_VERSION) if "version" in path else None
        return InferHead(read_sent(scope, started, self.settings), path["model"], version, header_length)

    async def read_question(self, head: InferHead, model: Model, receive: Receive) -> Question[InferRequest]:
        body = await read_whole(receive, head.sent.content_length, self.limits.max_bytes)
        read = partial(
            read_infer, body, head.header_length, model.manifest.input, specs_of(model.manifest), self.limits
        )
        json_length = len(body) if head.header_length is None else head.header_length
        asked = read() if json_length < SMALL_JSON else await asyncio.to_thread(read)
        for name, said, found in (
            ("model_name", asked.model, model.manifest.name),
            ("model_version", asked.version, str(model.manifest.version)),
        ):
            if said not in (None, found):
                raise MalformedRequest(f"{name} is {str(said)[:60]!r}, but the path leads to {found!r}")
        gate = model.choose_gate(asked.score, asked.policy, asked.preprocess)
        wanted = any(output.name == "confidence_preprocessed" for output in asked.outputs or ())
        return Question(asked, gate, asked.images, asked.preprocess or wanted)

    def write_answer(
        self,
        question: Question[InferRequest],
        model: Model,
        decisions: Sequence[Decision | RequestError],
        request_id: str,
    ) -> Response:
        decided = [decision for decision in decisions if isinstance(decision, Decision)]
        return infer_response(model.manifest, question.gate, question.asked, decided, request_id)


@router.get("/health/live", response_class=Response, responses={200: {"description": "The process runs."}})
async def live() -> Response:
    """Whether the process runs at all; if not, restart it."""
    return Response(status_code=200)


@router.get(
    "/health/ready",
    response_class=Response,
    responses={503: {"description": "Not now: nothing is loaded, or it is shutting down."}},
)
async def ready(request: Request) -> Response:
    """Whether requests should be sent here now."""
    lifecycle: Lifecycle = request.app.state.lifecycle
    registry: Registry = request.app.state.registry
    serving = lifecycle.ready and not lifecycle.draining and bool(registry.table)
    return Response(status_code=200 if serving else 503)


@router.get("")
async def server_metadata(request: Request) -> ServerMetadata:
    """Which server this is, and which extensions of the protocol it has."""
    return ServerMetadata(name="confgate", version=request.app.version, extensions=EXTENSIONS)


@router.get("/models/{model}", responses=NOT_LOADED)
async def model_metadata(request: Request, model: str) -> ModelMetadata:
    """Inputs and outputs of a model. The input may also be sent as BYTES [N]: image files of any size."""
    return _metadata(request, model, None)


@router.get("/models/{model}/versions/{version}", responses=NOT_LOADED)
async def version_metadata(request: Request, model: str, version: str) -> ModelMetadata:
    """The same of one version."""
    return _metadata(request, model, version)


@router.get("/models/{model}/ready", responses=NOT_READY)
async def model_ready(request: Request, model: str) -> ModelReady:
    """Whether requests for this model should be sent here now."""
    return _ready(request, model, None)


@router.get("/models/{model}/versions/{version}/ready", responses=NOT_READY)
async def version_ready(request: Request, model: str, version: str) -> ModelReady:
    """The same of one version."""
    return _ready(request, model, version)


def _metadata(request: Request, model: str, version: str | None) -> ModelMetadata:
    registry: Registry = request.app.state.registry
    manifest = _find(request, model, version).manifest
    size = manifest.input
    return ModelMetadata(
        name=manifest.name,
        versions=[str(number) for number in registry.table[model]],
        platform="onnxruntime_onnx",
        inputs=[TensorMetadata(name=INPUT, datatype="UINT8", shape=[-1, size.height, size.width, 3])],
        outputs=[
            TensorMetadata(name=name, datatype=spec.datatype, shape=[-1, *spec.shape])
            for name, spec in specs_of(manifest).items()
        ],
    )


def _ready(request: Request, model: str, version: str | None) -> ModelReady:
    lifecycle: Lifecycle = request.app.state.lifecycle
    if lifecycle.draining:
        raise NotReady("the service is shutting down: send the request to another replica")
    return ModelReady(name=_find(request, model, version).manifest.name, ready=True)


def _find(request: Request, model: str, version: str | None) -> Model:
    registry: Registry = request.app.state.registry
    return registry.get(model, None if version is None else whole("version", version, MAX_VERSION))
