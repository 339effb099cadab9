"""LitServe: the raw JPEG through a dependency of FastAPI, so that nothing is base64; decoded in its workers."""

import os
from typing import Annotated

import litserve
from fastapi import Depends, Request

from .classifier import Classifier, Pixels, Prediction


async def raw_body(request: Request) -> bytes:
    return await request.body()


class Api(litserve.LitAPI):  # type: ignore[misc]  # litserve is not installed here, so its class is Any
    def setup(self, device: str) -> None:  # noqa: ARG002 - the signature is LitServe's
        self.classifier = Classifier()

    def decode_request(self, request: Annotated[bytes, Depends(raw_body)]) -> Pixels:
        return self.classifier.decode(request)

    def batch(self, inputs: list[Pixels]) -> list[Pixels]:
        return inputs

    def predict(self, images: Pixels | list[Pixels]) -> Prediction | list[Prediction]:
        if isinstance(images, list):
            return self.classifier.classify(images)
        return self.classifier.classify([images])[0]  # LitServe passes no list if a batch has one image at most

    def unbatch(self, output: list[Prediction]) -> list[Prediction]:
        return output

    def encode_response(self, output: Prediction) -> Prediction:
        return output


if __name__ == "__main__":
    api = Api(
        max_batch_size=int(os.environ["BENCH_MAX_BATCH"]), batch_timeout=float(os.environ["BENCH_DELAY_MS"]) / 1000
    )
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=int(os.environ["BENCH_WORKERS"]),
        timeout=120,
        fast_queue=os.environ["LITSERVE_FAST_QUEUE"] == "1",
    )
    server.run(host="127.0.0.1", port=int(os.environ["BENCH_PORT"]), log_level="warning", generate_client_file=False)
