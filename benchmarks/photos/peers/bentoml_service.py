"""BentoML: the raw JPEG as body, a process for each worker. What it batches must be a list in the body: one by one."""

import os
from typing import Annotated, Any

import bentoml

from .classifier import Classifier


@bentoml.service(
    name="bench",
    workers=int(os.environ["BENCH_WORKERS"]),
    traffic={"timeout": 120},
    http={"host": "127.0.0.1", "port": int(os.environ["BENCH_PORT"])},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Bench:
    def __init__(self) -> None:
        self.classifier = Classifier()

    @bentoml.api(route="/classify")  # type: ignore[untyped-decorator]
    def classify(self, image: Annotated[bytes, bentoml.validators.ContentType("image/jpeg")], /) -> dict[str, Any]:
        return self.classifier.answer(image)
