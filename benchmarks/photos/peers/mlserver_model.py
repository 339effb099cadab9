"""MLServer: the V2 protocol with the JPEG as a BYTES tensor, base64 in JSON, for it has no binary tensors over REST."""

import asyncio
import base64
import os

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from .classifier import Classifier


class Model(MLModel):  # type: ignore[misc]  # mlserver is not installed here, so its class is Any
    async def load(self) -> bool:
        self.classifier = Classifier()
        self.in_threads = os.environ["MLSERVER_IN_THREADS"] == "1"
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        if self.in_threads:
            return await asyncio.to_thread(self._answer, payload)
        return self._answer(payload)

    def _answer(self, payload: InferenceRequest) -> InferenceResponse:
        images = [self.classifier.decode(base64.b64decode(item)) for item in payload.inputs[0].data.root]
        rows = self.classifier.probabilities(images)
        columns = {"class_id": rows.argmax(axis=1).astype(np.int64)[:, None], "probabilities": rows}
        outputs = [NumpyCodec.encode_output(name, column) for name, column in columns.items()]
        return InferenceResponse(model_name=self.name, outputs=outputs)
