"""LitServe: JSON with base64 (it reads JSON and forms but no raw bodies), batched in its one inference process."""

import base64
import os

import litserve

from .classifier import Classifier, Pixels, Prediction


class Api(litserve.LitAPI):  # type: ignore[misc]  # litserve is not installed here, so its class is Any
    def setup(self, device: str) -> None:  # noqa: ARG002 - the signature is LitServe's
        self.classifier = Classifier()

    def decode_request(self, request: dict[str, str]) -> Pixels:
        return self.classifier.decode(base64.b64decode(request["image"]))

    def batch(self, inputs: list[Pixels]) -> list[Pixels]:
        return inputs

    def predict(self, images: list[Pixels]) -> list[Prediction]:
        return self.classifier.classify(images)

    def unbatch(self, output: list[Prediction]) -> list[Prediction]:
        return output

    def encode_response(self, output: Prediction) -> Prediction:
        return output


if __name__ == "__main__":
    api = Api(
        max_batch_size=int(os.environ["BENCH_MAX_BATCH"]), batch_timeout=float(os.environ["LITSERVE_BATCH_TIMEOUT"])
    )
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=1,
        timeout=60,
        fast_queue=os.environ["LITSERVE_FAST_QUEUE"] == "1",
    )
    server.run(host="127.0.0.1", port=int(os.environ["BENCH_PORT"]), log_level="warning", generate_client_file=False)
