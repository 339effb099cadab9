"""The /v2 routes (Open Inference Protocol). Live is not ready: a draining service is alive and takes nothing new."""

from fastapi import APIRouter, Request, Response

from service.edge import Lifecycle

router = APIRouter(prefix="/v2", tags=["v2"])


@router.get("/health/live", response_class=Response, responses={200: {"description": "The process runs."}})
async def live() -> Response:
    """Whether the process runs at all; if not, restart it."""
    return Response(status_code=200)


@router.get(
    "/health/ready",
    response_class=Response,
    responses={503: {"description": "Not now: still loading, or shutting down."}},
)
async def ready(request: Request) -> Response:
    """Whether requests should be sent here now."""
    lifecycle: Lifecycle = request.app.state.lifecycle
    return Response(status_code=200 if lifecycle.ready and not lifecycle.draining else 503)
