"""The limit: ONNX Runtime alone, one process that runs one batch after another and nothing else.

    python -m benchmarks.serving.bare GRAPH --threads 1 --batch 1 8 32 --seconds 3

Prints a JSON list. It runs in a process of its own, under the same conditions as a server.
"""

import argparse
import json
import time

import numpy as np
import onnxruntime


def measure(session: onnxruntime.InferenceSession, batch: int, seconds: float) -> dict[str, float]:
    side = session.get_inputs()[0].shape[1]
    images = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    session.run(None, {"image": images})
    started, cpu, runs = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - started < seconds:
        session.run(None, {"image": images})
        runs += 1
    done = runs * batch
    return {
        "batch": batch,
        "images": done,
        "images_per_second": done / (time.perf_counter() - started),
        "cpu_per_1000": 1000 * (time.process_time() - cpu) / done,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=3)
    arguments = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(arguments.graph, options, providers=["CPUExecutionProvider"])
    print(json.dumps([measure(session, batch, arguments.seconds) for batch in arguments.batch]))


if __name__ == "__main__":
    main()
