"""Triton through PyTriton: the JPEG as a binary BYTES tensor; Triton gathers batches for threads of this
process, which ONNX Runtime and Pillow release the GIL to.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from .classifier import Classifier

Columns = dict[str, npt.NDArray[np.generic]]


def instance() -> Callable[..., Columns]:
    """A function that PyTriton calls in a thread of its own, with a session of its own."""
    classifier = Classifier()

    @batch  # type: ignore[untyped-decorator]
    def infer(image: npt.NDArray[np.object_]) -> Columns:
        rows = classifier.probabilities([classifier.decode(encoded) for encoded in image.ravel().tolist()])
        return {"class_id": rows.argmax(axis=1).astype(np.int64)[:, None], "probabilities": rows}

    infer_of_process: Callable[..., Columns] = infer
    return infer_of_process


if __name__ == "__main__":
    port = int(os.environ["BENCH_PORT"])
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=port,
        grpc_address="127.0.0.1",
        grpc_port=port + 1,
        metrics_port=port + 2,
    )
    workspace = Path(os.environ["TMPDIR"], "workspace")
    shutil.rmtree(workspace, ignore_errors=True)  # of an earlier part of the run
    with Triton(config=config, workspace=str(workspace)) as triton:
        triton.bind(
            model_name="bench",
            infer_func=[instance() for _ in range(int(os.environ["BENCH_WORKERS"]))],
            inputs=[Tensor(name="image", dtype=np.bytes_, shape=(1,))],
            outputs=[
                Tensor(name="class_id", dtype=np.int64, shape=(1,)),
                Tensor(name="probabilities", dtype=np.float32, shape=(-1,)),
            ],
            config=ModelConfig(
                max_batch_size=int(os.environ["BENCH_MAX_BATCH"]),
                batcher=DynamicBatcher(max_queue_delay_microseconds=int(1000 * float(os.environ["BENCH_DELAY_MS"]))),
            ),
        )
        triton.serve()
