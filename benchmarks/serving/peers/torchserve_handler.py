"""TorchServe: the raw PNG as body; its frontend gathers a batch and hands it to one worker."""

import json

from peers.classifier import Classifier


class Handler:
    def __init__(self) -> None:
        self.classifier: Classifier | None = None

    def initialize(self, _: object) -> None:
        self.classifier = Classifier()

    def handle(self, requests: list[dict], _: object) -> list[str]:
        images = [self.classifier.decode(bytes(request.get("body") or request["data"])) for request in requests]
        return [json.dumps(answer) for answer in self.classifier.classify(images)]
