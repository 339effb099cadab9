"""The requests that are measured: image files to /v1/predict, and tensors to /v2 as binary data."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks.serving.servers import ROOT

MODEL = "instant"
SMALL, PHOTO = 32, 224  # pixels
TENSORS_EACH = (1, 8, 32)
PREDICT, INFER = "/v1/predict", f"/v2/models/{MODEL}/infer"
JPEG_QUALITY = 90


@dataclass(frozen=True, eq=False)
class Request:
    """One kind of request; `side` is the size of the model that it is sent to."""

    name: str
    side: int
    images: int
    path: str
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def all_requests() -> list[Request]:
    png = (ROOT / "examples" / "cat.png").read_bytes()
    photo = io.BytesIO()
    Image.fromarray(textured(PHOTO)).save(photo, "JPEG", quality=JPEG_QUALITY)
    return [
        Request(f"PNG {SMALL}", SMALL, 1, PREDICT, "image/png", png),
        Request(f"JPEG {PHOTO}", PHOTO, 1, PREDICT, "image/jpeg", photo.getvalue()),
        *(tensor_request(side, images) for side in (SMALL, PHOTO) for images in TENSORS_EACH),
    ]


def tensor_request(side: int, images: int) -> Request:
    """Raw pixels behind a JSON head, as tritonclient sends them; the answer has every output, as JSON."""
    pixels = textured(side)
    tensor = np.stack([np.roll(pixels, 7 * place, axis=0) for place in range(images)])
    described = {"name": "image", "shape": list(tensor.shape), "datatype": "UINT8"}
    head = json.dumps({"inputs": [{**described, "parameters": {"binary_data_size": tensor.nbytes}}]}).encode()
    return Request(
        f"tensor {list(tensor.shape)}",
        side,
        images,
        INFER,
        "application/octet-stream",
        head + tensor.tobytes(),
        {"Inference-Header-Content-Length": str(len(head))},
    )


def textured(side: int) -> npt.NDArray[np.uint8]:
    """Noise on every scale, half as strong where it is twice as fine: a JPEG of it is about as large as of a photo."""
    random = np.random.default_rng(0)
    sums = np.zeros((side, side, 3))
    cells = 4
    while cells <= side:
        layer = Image.fromarray(random.integers(0, 256, (cells, cells, 3), np.uint8))
        sums += np.asarray(layer.resize((side, side), Image.Resampling.BICUBIC), np.float64) * 4 / cells
        cells *= 2
    return np.asarray(255 * (sums - sums.min()) / np.ptp(sums), np.uint8)
