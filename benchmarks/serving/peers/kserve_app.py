"""KServe's SDK server: the V1 protocol with base64. It does not batch by itself (KServe's batcher is a sidecar)."""

import base64
import os
from typing import Any

import kserve

from .classifier import Classifier


class Model(kserve.Model):  # type: ignore[misc]  # kserve is not installed here, so its class is Any
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.classifier = Classifier()
        self.ready = True

    def predict(self, payload: dict[str, Any], *_: object, **__: object) -> dict[str, Any]:
        images = [self.classifier.decode(base64.b64decode(item["image"])) for item in payload["instances"]]
        return {"predictions": self.classifier.classify(images)}


if __name__ == "__main__":
    server = kserve.ModelServer(
        http_port=int(os.environ["BENCH_PORT"]), enable_grpc=False, workers=1, access_log_format=None
    )
    server.start([Model("bench")])
