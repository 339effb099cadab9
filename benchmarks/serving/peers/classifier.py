"""The work of every peer: Pillow decodes an image, ONNX Runtime classifies it, the answer is a small dict.

This is less than confgate does: one score, one threshold, no metrics. No peer pays for features that it lacks.
"""

import io
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image

LABELS = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
THRESHOLD = 0.73

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Prediction = dict[str, Any]  # as JSON


class Classifier:
    """One ONNX Runtime session with the benchmark's settings, warmed up."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["BENCH_THREADS"])
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            os.environ["BENCH_MODEL"], options, providers=["CPUExecutionProvider"]
        )
        side = self._session.get_inputs()[0].shape[1]
        for batch in (1, int(os.environ["BENCH_MAX_BATCH"])):
            self._session.run(None, {"image": np.zeros((batch, side, side, 3), np.uint8)})
        self._size = (side, side)

    def decode(self, encoded: bytes) -> Pixels:
        image = Image.open(io.BytesIO(encoded)).convert("RGB")
        return np.asarray(image if image.size == self._size else image.resize(self._size, Image.Resampling.BILINEAR))

    def classify(self, images: list[Pixels]) -> list[Prediction]:
        probabilities, confidence, class_ids = self.columns(images)
        return [
            {
                "class_id": k,
                "label": LABELS[k],
                "probabilities": dict(zip(LABELS, row, strict=True)),
                "confidence": c,
                "in_distribution": c > THRESHOLD,
            }
            for k, row, c in zip(class_ids.tolist(), probabilities.tolist(), confidence.tolist(), strict=True)
        ]

    def columns(self, images: list[Pixels]) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
        """Probabilities [N,K], confidence [N] and class ids [N] of a batch."""
        logits, z = self._session.run(("logits", "confidence_logit"), {"image": np.stack(images)})
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
        return probabilities, 1 / (1 + np.exp(-z)), logits.argmax(axis=1)
