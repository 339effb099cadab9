"""The /v1 routes of operators: which gate is in force, and who changed it. All of them need an admin key."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from service.errors import MalformedRequest, TooLarge, UnknownModel
from service.serving.gate_overrides import GateChange, Thresholds
from service.serving.override_store import MAX_HISTORY
from service.serving.predictor import Model
from service.serving.registry import Registry
from service.web.keys import Caller, require_admin
from service.web.v1.models import gate_info
from service.web.v1.schemas import PROBLEM, GateHistory, GateInfo

GATE = "/models/{model}/versions/{version}/gate"
MAX_BODY_BYTES = 10_000
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "Malformed.", **PROBLEM},
    401: {"description": "No key, or an unknown one.", **PROBLEM},
    403: {"description": "Not an admin key.", **PROBLEM},
    404: {"description": "No such version is loaded.", **PROBLEM},
}
Admin = Annotated[Caller, Depends(require_admin)]

router = APIRouter(prefix="/v1", tags=["admin"])


@router.get(GATE, responses=REFUSALS)
async def show_gate(request: Request, model: str, version: int, caller: Admin) -> GateInfo:  # noqa: ARG001 - the check
    """What decides for requests that name neither score nor policy, and who set it."""
    served, thresholds = _served(request, model, version), _thresholds(request)
    return gate_info(served, thresholds.setting_of(served))


@router.put(
    GATE,
    responses={
        **REFUSALS,
        413: {"description": "The body is too large.", **PROBLEM},
        500: {"description": "Could not be saved, and was not made.", **PROBLEM},
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/GateChange"}}},
        }
    },
)
async def set_gate(request: Request, model: str, version: int, caller: Admin) -> GateInfo:
    """Sets a policy, or a threshold of your own, without loading the model again."""
    served, thresholds = _served(request, model, version), _thresholds(request)
    await thresholds.set(served, await _read_change(request), caller)
    return gate_info(served, thresholds.setting_of(served))


@router.delete(GATE, status_code=204, responses=REFUSALS)
async def reset_gate(request: Request, model: str, version: int, caller: Admin) -> Response:
    """Goes back to the bundle's default. Works for a version that is no longer served, too."""
    try:
        served: Model | None = _served(request, model, version)
    except UnknownModel:
        served = None
    await _thresholds(request).reset(model, version, served, caller)
    return Response(status_code=204)


@router.get("/gates/history", responses={code: REFUSALS[code] for code in (400, 401, 403)})
async def show_history(
    request: Request,
    caller: Admin,  # noqa: ARG001 - the check
    model: str | None = None,
    version: int | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_HISTORY)] = 100,
) -> GateHistory:
    """Who changed which gate, when, from what to what; newest first."""
    return GateHistory(changes=_thresholds(request).history(model, version, limit))


def _thresholds(request: Request) -> Thresholds:
    thresholds: Thresholds = request.app.state.thresholds
    return thresholds


def _served(request: Request, model: str, version: int) -> Model:
    registry: Registry = request.app.state.registry
    return registry.get(model, version)


async def _read_change(request: Request) -> GateChange:
    """By hand, because FastAPI would take in a body of any size before it asks whose it is."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge(f"the body has more than the {MAX_BODY_BYTES} bytes that are allowed")
    try:
        return GateChange.model_validate_json(bytes(body), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        message = str(first["msg"]).removeprefix("Value error, ")
        raise MalformedRequest(
            f"{field + ': ' if field else ''}{message}. "
            'Expected {"policy": NAME}, {"threshold": 0…1} or {"threshold_raw": NUMBER}, and perhaps score and note'
        ) from error
