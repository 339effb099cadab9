"""Examples for the OpenAPI document: answers like those of the shipped models, a model, a sentence per problem.

The document needs no key, so nothing in it may come from what is loaded.
"""

from typing import Any

from service.model.pairs import CERTAINTY_EDGES, FAMILIARITY_EDGES
from service.model.scores import HISTOGRAM_EDGES

# A red PNG of 4×4 pixels: small enough to read past, and a request that really works.
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAQAAAAECAIAAAAmkwkpAAAAEElEQVR42mP4z8AARwzEcQCukw/xOF6MEQAAAABJRU5ErkJggg=="
REQUEST_ID = "381750e07545929bd4b52a9f2a749b74"

_GATE = {"score": "typicality", "policy": "balanced", "threshold": 0.01, "certainty_threshold": 0.8}
_CAT = {
    "class_id": 3,
    "label": "cat",
    "probabilities": {"cat": 0.9941235934015038, "dog": 0.0049228110028656695},
    "confidence": 0.928816254434943,
    "confidence_preprocessed": None,
    "typicality": 0.5571428571428572,
    "certainty": 0.9941235934015038,
    "accepted": True,
    "reason": None,
    "in_distribution": True,
    "score_value": 0.5571428571428572,
    **_GATE,
}
_BOOT = {
    "class_id": 3,
    "label": "cat",
    "probabilities": {"cat": 0.7554994003789532, "horse": 0.10457417417062354},
    "confidence": 0.4898283509773848,
    "confidence_preprocessed": None,
    "typicality": 0.0021994001599573454,
    "certainty": 0.7554994003789532,
    "accepted": False,
    "reason": "unfamiliar",
    "in_distribution": False,
    "score_value": 0.0021994001599573454,
    **_GATE,
}
_CAT_OR_DOG = {
    "class_id": 5,
    "label": "dog",
    "probabilities": {"dog": 0.5217391304347826, "cat": 0.4608695652173913},
    "confidence": 0.8039863596775939,
    "confidence_preprocessed": None,
    "typicality": 0.3142857142857143,
    "certainty": 0.5217391304347826,
    "accepted": False,
    "reason": "unsure",
    "in_distribution": True,
    "score_value": 0.3142857142857143,
    **_GATE,
}
_FAILED = {
    "error": {
        "type": "urn:confgate:problem:invalid-image",
        "title": "The image cannot be decoded",
        "status": 422,
        "detail": "the bytes are not a PNG, JPEG, WebP or GIF image, or a badly damaged one",
        "index": 1,
    }
}


def _answer(*predictions: dict[str, Any]) -> dict[str, Any]:
    return {"id": REQUEST_ID, "model": "cifar10", "version": 1, "predictions": list(predictions)}


REQUEST: dict[str, Any] = {"images": [IMAGE]}
ANSWERS: dict[str, dict[str, Any]] = {
    "known": {"summary": "A cat, which the model knows (top_k=2)", "value": _answer(_CAT)},
    "unfamiliar": {"summary": "A boot, which it does not know: still an answer (top_k=2)", "value": _answer(_BOOT)},
    "unsure": {"summary": "A cat or a dog, it cannot tell which (top_k=2)", "value": _answer(_CAT_OR_DOG)},
    "partial": {"summary": "Two files, one of them no image (partial=true)", "value": _answer(_CAT, _FAILED)},
}
_COUNTED = {0.5: 260, 0.8: 1000, 0.9: 1240, 0.95: 1500, 0.99: 1000}  # calibration images, by their upper edge
_POLICY = {
    "threshold": 0.9,
    "threshold_raw": 2.197224577336219,
    "expected_rejection_rate": 0.252,
    "expected_rejection_interval": [0.24, 0.264],
    "detection_error": 0.138,
    "n": 5000,
    "how": "least detection error between correctly classified and misclassified calibration images",
}
_PAIR = {
    "familiarity": 0.01,
    "familiarity_raw": -4.59511985013459,
    "certainty": 0.8,
    "certainty_raw": 1.3862943611198908,
    "expected": {
        "unfamiliar": {"rate": 0.01, "interval": [0.0076, 0.0132]},
        "unsure": {"rate": 0.15, "interval": [0.1404, 0.1602]},
        "total": {"rate": 0.16, "interval": [0.1501, 0.1704]},
    },
    "n": 5000,
    "how": "1 % of the correctly classified calibration images are unfamiliar; 4 % of the accepted ones misclassified",
}
_ROWS, _COLUMNS = len(FAMILIARITY_EDGES), len(CERTAINTY_EDGES)


def _cells(**counts: int) -> list[list[int]]:
    """A joint histogram with images only in a few of its cells: their row and column, as `r_c`."""
    return [[counts.get(f"at_{row}_{column}", 0) for column in range(_COLUMNS)] for row in range(_ROWS)]


MODEL: dict[str, Any] = {
    "name": "cifar10",
    "default_version": 1,
    "versions": [
        {
            "version": 1,
            "created": "2026-01-02T03:04:05Z",
            "provenance": {
                "git_sha": "0" * 40,
                "recipe": "compact-cifar10",
                "seed": 0,
                "data": "cifar10",
                "commands": [
                    "confgate-train fit compact-cifar10 --out runs/cifar10",
                    "confgate-train export runs/cifar10 --out models/cifar10/1",
                ],
                "resolved_recipe": {"name": "compact-cifar10", "data": {"dataset": "cifar10"}},
            },
            "device": {"requested": "auto", "active": "cpu"},
            "parallelism": {"threads": 2, "workers": 4},
            "input": {
                "width": 32,
                "height": 32,
                "resize": "stretch",
                "interpolation": "bicubic",
                "crop_fraction": 1.0,
                "decode_margin": 2.0,
            },
            "max_batch": None,
            "sessions": {"forward": {"largest_batch": 17, "open": True}},
            "labels": ["airplane", "cat", "dog", "horse"],
            "temperature": 0.97,
            # A real model has more scores; `typicality` carries hundreds of quantiles.
            "scores": {
                "certainty": {
                    "epsilon": None,
                    "temperature": 0.97,
                    "display": None,
                    "typicality": None,
                    "policies": {"misclassified": _POLICY},
                    "reference": {
                        "edges": list(HISTOGRAM_EDGES),
                        "counts": [_COUNTED.get(edge, 0) for edge in HISTOGRAM_EDGES],
                    },
                }
            },
            "pairs": {
                "policies": {"balanced": _PAIR},
                "joint": {
                    "familiarity_edges": list(FAMILIARITY_EDGES),
                    "certainty_edges": list(CERTAINTY_EDGES),
                    "correct": _cells(at_6_27=50, at_20_12=600, at_27_27=4000),
                    "wrong": _cells(at_20_12=150, at_27_27=200),
                },
            },
            "default": {"score": None, "policy": "balanced"},
            "active": {
                **_GATE,
                "threshold_raw": -4.59511985013459,
                "certainty_threshold_raw": 1.3862943611198908,
                "expected_rejection_rate": 0.16,
                "expected_refusals": {"unfamiliar": 0.01, "unsure": 0.15},
                "expected_rejection_margin": 0.0,
                "n": 5000,
                "set_by_operator": False,
            },
            "evaluation": [
                {"metric": "accuracy", "data": "cifar10 test", "value": 0.92, "n": 10000, "score": None, "policy": None}
            ],
            "graphs": {"forward": {"file": "model.onnx", "sha256": "0" * 64, "size": 8000000}},
            "external_data": [],
        }
    ],
}
MODELS: dict[str, Any] = {"default_model": "cifar10", "models": [MODEL]}
# What a client is told, by the last part of the problem's type.
DETAILS: dict[str, str] = {
    "malformed-request": "top_k must be a whole number from 1 to 2147483648, not '0'",
    "malformed-http": "the bytes are not a valid HTTP/1.1 request: check the request line, the headers, and that "
    "Content-Length is the length of the body",
    "unauthorised": "this service needs an API key: send one as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'",
    "cross-site": "a web page of the origin 'https://example.org' sent this request, and only the service's own pages "
    "may: send it from a program, or add the page's origin to the setting allowed_origins (CONFGATE_ALLOWED_ORIGINS)",
    "wrong-host": "this service does not answer to the host 'example.org': ask it by a name that it knows, or add this "
    "one to the setting allowed_hosts (CONFGATE_ALLOWED_HOSTS)",
    "unknown-model": "model 'cifar100' is not loaded; served are cifar10, fashion_mnist",
    "body-timeout": "the request body did not arrive whole in time",
    "memory-budget": "the bodies of requests in flight hold the 512000000 bytes that are allowed already; "
    "try again in 1 s",
    "too-many-connections": "4096 connections are in use, and more are not allowed; try again",
    "head-timeout": "the head was not complete after 10 s",
    "too-large": "the image has 20000×20000 pixels; at most 40000000 pixels are decoded",
    "head-too-large": "the head has more than the 65536 bytes that are allowed",
    "unsupported-type": "Content-Type 'text/html' is not served: send image/png, image/jpeg, image/webp or "
    "image/gif with the file as body, or multipart/form-data, or application/json",
    "invalid-image": "the image is damaged or of an unknown kind: image file is truncated (43 bytes not processed)",
    "queue-full": "512 images are waiting and there is room for 512; try again in 1 s",
    "inference-failed": "the model failed on the batch with this image",
    "internal": "an unexpected error; the service's log has it under this request's id",
    "graph-unavailable": "the graph perturbed of clothing 1 was closed after it was checked and cannot be opened now; "
    "the service's log says why. Send the request again, or without preprocess=true",
    "not-ready": "the service is shutting down: send the request to another replica",
    "deadline-exceeded": "no answer within 10000 ms",
}
