"""POST /v2/…/infer in the OpenAPI document: plain ASGI, like /v1/predict."""

from typing import Any

from pydantic import BaseModel

from service.errors import Forbidden, LoadRefused, StateNotSaved
from service.settings import Settings
from service.web.problems import PROBLEMS
from service.web.v2.schemas import ErrorResponse, IndexRequest, InferenceRequest, InferenceResponse, RepositoryRequest

SCHEMAS_V2: tuple[type[BaseModel], ...] = (
    *(InferenceRequest, InferenceResponse, ErrorResponse, IndexRequest, RepositoryRequest),
)
OF_OTHER_ROUTES = (Forbidden, LoadRefused, StateNotSaved)
OF_INFER = [problem for kind, problem in PROBLEMS.items() if kind not in OF_OTHER_ROUTES]


def infer_paths(settings: Settings) -> dict[str, Any]:
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    version = {"name": "version", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 1}}
    return {
        "/v2/models/{model}/infer": {"post": _infer(settings, "infer", [model])},
        "/v2/models/{model}/versions/{version}/infer": {"post": _infer(settings, "infer_version", [model, version])},
    }


def _infer(settings: Settings, operation: str, path: list[dict[str, Any]]) -> dict[str, Any]:
    json = {"application/json": {"schema": _ref(InferenceRequest)}}
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    statuses = sorted({problem.status for problem in OF_INFER})
    return {
        "tags": ["v2"],
        "operationId": operation,
        "summary": "Classify images by the Open Inference Protocol",
        "description": (
            "The one input is `image`: UINT8 [N, height, width, 3], or BYTES [N] of image files. With "
            "Inference-Header-Content-Length the body is JSON of that length and then the input's bytes. "
            f"At most {settings.max_images} images and {settings.max_body_bytes} bytes."
        ),
        "parameters": [
            *path,
            {
                "name": "Inference-Header-Content-Length",
                "in": "header",
                "required": False,
                "schema": {"type": "integer", "minimum": 1},
                "description": "How many bytes of the body are JSON, where binary data follows it.",
            },
            {
                "name": "X-Request-Timeout-Ms",
                "in": "header",
                "required": False,
                "schema": {"type": "integer", "minimum": 1, "maximum": 600_000},
                "description": "Time for the answer; 504 after it.",
            },
        ],
        "requestBody": {"required": True, "content": json | binary},
        "responses": {
            "200": {
                "description": "The outputs. With binary outputs JSON, and their bytes behind it.",
                "headers": {"Inference-Header-Content-Length": {"schema": {"type": "integer"}}},
                "content": {"application/json": {"schema": _ref(InferenceResponse)}} | binary,
            },
            **{
                str(status): {
                    "description": "; ".join(p.title for p in OF_INFER if p.status == status),
                    "content": {"application/json": {"schema": _ref(ErrorResponse)}},
                }
                for status in statuses
            },
        },
    }


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
