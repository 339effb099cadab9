"""KServe's SDK server: the V1 protocol with base64. It has no batching of its own (KServe's batcher is a sidecar)."""

import base64
import os

import kserve
from peers.classifier import Classifier


class Model(kserve.Model):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.classifier = Classifier()
        self.ready = True

    def predict(self, payload: dict, *_: object, **__: object) -> dict:
        images = [self.classifier.decode(base64.b64decode(item["image"])) for item in payload["instances"]]
        return {"predictions": self.classifier.classify(images)}


if __name__ == "__main__":
    server = kserve.ModelServer(
        http_port=int(os.environ["BENCH_PORT"]), enable_grpc=False, workers=1, access_log_format=None
    )
    server.start([Model("bench")])
