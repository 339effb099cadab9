"""The /v2 routes for health and metadata. Live is not ready: a draining service is alive and takes no new requests."""

from typing import Any

from fastapi import APIRouter, Request, Response

from service.errors import NotReady
from service.serving.lifecycle import Lifecycle
from service.serving.registry import Registry
from service.serving.served_model import Model
from service.web.parameters import MAX_VERSION, whole_number
from service.web.v2.request import INPUT
from service.web.v2.response import specs_of
from service.web.v2.schemas import ErrorResponse, ModelMetadata, ModelReady, ServerMetadata, TensorMetadata

EXTENSIONS = ["binary_tensor_data", "classification", "model_repository"]
NOT_LOADED: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "The version is no whole number."},
    404: {"model": ErrorResponse, "description": "Not loaded."},
}
NOT_READY = NOT_LOADED | {503: {"model": ErrorResponse, "description": "The service is shutting down."}}

router = APIRouter(prefix="/v2", tags=["v2"])


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
    return registry.get(model, None if version is None else whole_number("version", version, MAX_VERSION))
