"""KServe's SDK server: the V2 protocol with the JPEG as a binary UINT8 tensor. It does not batch by itself."""

import asyncio
import os

import kserve
import numpy as np

from .classifier import Classifier, Floats


class Model(kserve.Model):  # type: ignore[misc]  # kserve is not installed here, so its class is Any
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.in_threads = os.environ["KSERVE_IN_THREADS"] == "1"
        self.load()

    def load(self) -> bool:
        self.classifier = Classifier()
        self.ready = True
        return True

    async def predict(self, payload: kserve.InferRequest, *_: object, **__: object) -> kserve.InferResponse:
        encoded = payload.inputs[0].as_numpy().tobytes()
        rows = await asyncio.to_thread(self._rows, encoded) if self.in_threads else self._rows(encoded)
        outputs = []
        for name, datatype, column in (
            ("class_id", "INT64", rows.argmax(axis=1).astype(np.int64)),
            ("probabilities", "FP32", rows),
        ):
            output = kserve.InferOutput(name, list(column.shape), datatype)
            output.set_data_from_numpy(column, binary_data=False)
            outputs.append(output)
        return kserve.InferResponse(payload.id or "photo", self.name, outputs)

    def _rows(self, encoded: bytes) -> Floats:
        return self.classifier.probabilities([self.classifier.decode(encoded)])


if __name__ == "__main__":
    server = kserve.ModelServer(
        http_port=int(os.environ["BENCH_PORT"]),
        enable_grpc=False,
        workers=int(os.environ["BENCH_WORKERS"]),
        access_log_format=None,
    )
    server.start([Model("bench")])
