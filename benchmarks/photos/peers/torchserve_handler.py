"""TorchServe: the raw JPEG as body; its frontend gathers batches and passes them to its workers."""

import json
from collections.abc import Mapping

# Absolute: TorchServe loads this file by itself, outside of its package.
from peers.classifier import Classifier


class Handler:
    classifier: Classifier

    def initialize(self, _: object) -> None:
        self.classifier = Classifier()

    def handle(self, requests: list[Mapping[str, bytearray]], _: object) -> list[str]:
        images = [self.classifier.decode(bytes(request.get("body") or request["data"])) for request in requests]
        return [json.dumps(answer) for answer in self.classifier.classify(images)]
