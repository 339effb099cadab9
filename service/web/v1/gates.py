"""The /v1 routes of operators: which gate is in force, and who changed it. All of them need an admin key."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from service.serving.gate_changes import GateChange
from service.serving.gate_overrides import GateOverrides
from service.serving.override_store import MAX_HISTORY, GateSetting
from service.serving.registry import Registry
from service.serving.served_model import Model
from service.web.auth import require_admin
from service.web.json_bodies import read_json
from service.web.keys import Caller
from service.web.parameters import refuse_repeated
from service.web.v1.models import active_gate
from service.web.v1.schemas import PROBLEM, GateHistory, GateInfo

GATE = "/models/{model}/versions/{version}/gate"
EXPECTED = (
    '{"policy": NAME}, {"threshold": 0…1} or {"threshold_raw": NUMBER}, and perhaps score; or {"familiarity": 0…1, '
    '"certainty": 0…1} or one of these; and perhaps note'
)
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "Malformed.", **PROBLEM},
    401: {"description": "No key, or an unknown one.", **PROBLEM},
    403: {"description": "Not an admin key.", **PROBLEM},
    404: {"description": "No such version is loaded.", **PROBLEM},
}
NOT_SAVED: dict[int | str, dict[str, Any]] = {
    500: {"description": "Could not be saved, and was not made.", **PROBLEM},
}
Admin = Annotated[Caller, Depends(require_admin)]

router = APIRouter(prefix="/v1", tags=["admin"])


@router.get(GATE, responses=REFUSALS)
async def show_gate(request: Request, model: str, version: int, caller: Admin) -> GateInfo:  # noqa: ARG001 - the check
    """What decides for requests that name neither score nor policy, and who set it."""
    served, overrides = _served(request, model, version), _overrides(request)
    return gate_info(served, overrides.setting_of(served))


@router.put(
    GATE,
    responses={
        **REFUSALS,
        408: {"description": "The body did not arrive in time.", **PROBLEM},
        413: {"description": "The body is too large.", **PROBLEM},
        **NOT_SAVED,
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/GateChange"}}},
        }
    },
)
async def set_gate(request: Request, model: str, version: int, caller: Admin) -> GateInfo:
    """Sets a policy, or thresholds of your own, without loading the model again."""
    find, overrides = partial(_served, request, model, version), _overrides(request)
    find()  # a version that is not served is refused before the body is read
    change = await read_json(request, GateChange, EXPECTED)
    served = await overrides.set(find, change, caller.name)
    return gate_info(served, overrides.setting_of(served))


@router.delete(GATE, status_code=204, responses=REFUSALS | NOT_SAVED)
async def reset_gate(request: Request, model: str, version: int, caller: Admin) -> Response:
    """Goes back to the bundle's default. Works for a version that is no longer served, too."""
    await _overrides(request).reset(model, version, partial(_served, request, model, version), caller.name)
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
    refuse_repeated(request.query_params.multi_items())
    return GateHistory(changes=_overrides(request).history(model, version, limit))


def gate_info(model: Model, setting: GateSetting | None) -> GateInfo:
    """The gate in force, with who set it."""
    return GateInfo(
        **active_gate(model).model_dump(),
        model=model.manifest.name,
        version=model.manifest.version,
        by=setting and setting.by,
        at=setting and setting.at,
        note=setting and setting.note,
        ignored=model.override.ignored,
    )


def _overrides(request: Request) -> GateOverrides:
    overrides: GateOverrides = request.app.state.overrides
    return overrides


def _served(request: Request, model: str, version: int) -> Model:
    registry: Registry = request.app.state.registry
    return registry.get(model, version)
