"""What the tests of /v2 share: images of one colour as a client sends them, and the outputs it gets."""

import json
from typing import Any

import httpx
import numpy as np
import tritonclient.http as triton

from tests.conftest import SIDE

OUTPUTS = {
    "class_id": ("INT64", [-1]),
    "label": ("BYTES", [-1]),
    "probabilities": ("FP32", [-1, 3]),
    "confidence": ("FP32", [-1]),
    "in_distribution": ("BOOL", [-1]),
    "accepted": ("BOOL", [-1]),
    "reason": ("BYTES", [-1]),
    "certainty": ("FP32", [-1]),
    "confidence_preprocessed": ("FP32", [-1]),
}
COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "grey": (128, 128, 128)}


def pixels(*colours: str) -> np.ndarray:
    return np.stack([np.full((SIDE, SIDE, 3), COLOURS[colour], np.uint8) for colour in colours])


def raw_input(images: np.ndarray, binary: bool = True) -> triton.InferInput:
    tensor = triton.InferInput("image", list(images.shape), "UINT8")
    return tensor.set_data_from_numpy(images, binary_data=binary)


def file_input(*files: bytes) -> triton.InferInput:
    tensor = triton.InferInput("image", [len(files)], "BYTES")
    return tensor.set_data_from_numpy(np.array(files, np.object_))


def post(client: httpx.Client, body: Any, model: str = "colours", **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(f"/v2/models/{model}/infer", content=content, headers=headers)


def json_request(*colours: str, **fields: Any) -> dict[str, Any]:
    images = pixels(*colours)
    tensor = {"name": "image", "shape": list(images.shape), "datatype": "UINT8", "data": images.ravel().tolist()}
    return {"inputs": [tensor], **fields}
