"""Ray Serve: the raw JPEG as body, in replicas behind its proxy."""

import asyncio
import os
import signal

import ray
from ray import serve
from starlette.requests import Request

from .classifier import Classifier, Prediction

BATCH = int(os.environ["BENCH_MAX_BATCH"])
DELAY = float(os.environ["BENCH_DELAY_MS"]) / 1000


@serve.deployment(
    num_replicas=int(os.environ["BENCH_WORKERS"]),
    max_ongoing_requests=max(2, 2 * BATCH),
    # The proxy and the controller need some CPU too; this is what Ray plans with, no limit.
    ray_actor_options={"num_cpus": 0.5},
)
class Bench:
    def __init__(self) -> None:
        self.classifier = Classifier()

    async def __call__(self, request: Request) -> Prediction:
        encoded = await request.body()
        if BATCH == 1:
            return await asyncio.to_thread(self.classifier.answer, encoded)
        answer: Prediction = await self.gathered(encoded)
        return answer

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=DELAY)  # type: ignore[untyped-decorator]
    async def gathered(self, encoded: list[bytes]) -> list[Prediction]:
        return await asyncio.to_thread(self._answers, encoded)

    def _answers(self, encoded: list[bytes]) -> list[Prediction]:
        return self.classifier.classify([self.classifier.decode(one) for one in encoded])


if __name__ == "__main__":
    ray.init(
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=True,
        object_store_memory=200_000_000,
        runtime_env={"env_vars": {key: value for key, value in os.environ.items() if key.startswith("BENCH_")}},
    )
    logging = {"enable_access_log": False, "log_level": "WARNING"}
    serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ["BENCH_PORT"])}, logging_config=logging)
    serve.run(Bench.bind(), logging_config=logging)  # type: ignore[attr-defined]
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()
