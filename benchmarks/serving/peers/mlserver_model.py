"""MLServer: the V2 protocol with the image as a BYTES tensor, base64 in JSON; its adaptive batching joins requests."""

import asyncio
import base64
import os

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from .classifier import THRESHOLD, Classifier


class Model(MLModel):  # type: ignore[misc]  # mlserver is not installed here, so its class is Any
    async def load(self) -> bool:
        self.classifier = Classifier()
        self.in_thread = os.environ["MLSERVER_IN_THREAD"] == "1"
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        # A thread lets the server read and gather the next batch while this one is computed.
        if self.in_thread:
            return await asyncio.to_thread(self._answer, payload)
        return self._answer(payload)

    def _answer(self, payload: InferenceRequest) -> InferenceResponse:
        encoded = payload.inputs[0].data.root
        images = [self.classifier.decode(base64.b64decode(item)) for item in encoded]
        probabilities, confidence, class_ids = self.classifier.columns(images)
        columns = {
            "class_id": class_ids[:, None],
            "probabilities": probabilities,
            "confidence": confidence[:, None],
            "in_distribution": (confidence > THRESHOLD).astype(np.uint8)[:, None],
        }
        outputs = [NumpyCodec.encode_output(name, column) for name, column in columns.items()]
        return InferenceResponse(model_name=self.name, outputs=outputs)
