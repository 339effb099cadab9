"""The work of every peer, and of the limit: Pillow decodes a JPEG, ONNX Runtime classifies it, the answer is a dict.

This is less than confgate does: one score, no thresholds, no metrics, no limits on what a file may cost. The file
BENCH_FACTS has what the bundle says about its input, labels and temperature.
"""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Prediction = dict[str, Any]  # as JSON


class Classifier:
    """One ONNX Runtime session with the benchmark's settings, warmed up."""

    def __init__(self) -> None:
        facts = json.loads(Path(os.environ["BENCH_FACTS"]).read_text())
        self.labels: list[str] = facts["labels"]
        self._temperature: float = facts["temperature"]
        self._size = (facts["width"], facts["height"])
        self._crop_fraction: float = facts["crop_fraction"]
        self._resample = Image.Resampling[facts["interpolation"].upper()]
        self._draft: int | None = facts["draft_side"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["BENCH_THREADS"])
        options.inter_op_num_threads = 1
        # Threads that spin while they wait would take the CPU from those that decode.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            os.environ["BENCH_MODEL"], options, providers=["CPUExecutionProvider"]
        )
        width, height = self._size
        for batch in sorted({1, int(os.environ["BENCH_MAX_BATCH"])}):
            self._session.run(("logits",), {"image": np.zeros((batch, height, width, 3), np.uint8)})

    def decode(self, encoded: bytes) -> Pixels:
        """The middle of a photo with the network's proportions, at the network's size."""
        image = Image.open(io.BytesIO(encoded))
        if self._draft is not None:
            image.draft(None, (self._draft, self._draft))
        rgb = image.convert("RGB")
        scale = min(rgb.width / self._size[0], rgb.height / self._size[1]) * self._crop_fraction
        width, height = self._size[0] * scale, self._size[1] * scale
        left, top = (rgb.width - width) / 2, (rgb.height - height) / 2
        return np.asarray(rgb.resize(self._size, self._resample, box=(left, top, left + width, top + height)))

    def probabilities(self, images: list[Pixels]) -> Floats:
        """Calibrated probabilities [N, K] of a batch."""
        batch = images[0][None] if len(images) == 1 else np.stack(images)
        logits = self._session.run(("logits",), {"image": batch})[0] / self._temperature
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares: Floats = exponentials / exponentials.sum(axis=1, keepdims=True)
        return shares

    def classify(self, images: list[Pixels]) -> list[Prediction]:
        rows = self.probabilities(images)
        return [
            {"class_id": k, "label": self.labels[k], "probabilities": dict(zip(self.labels, row, strict=True))}
            for k, row in zip(rows.argmax(axis=1).tolist(), rows.tolist(), strict=True)
        ]

    def answer(self, encoded: bytes) -> Prediction:
        """One photo by itself, for servers and settings without batches."""
        return self.classify([self.decode(encoded)])[0]
