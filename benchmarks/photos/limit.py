"""The limit: as many bare processes as CPUs; each decodes photos and runs ONNX Runtime on one thread, nothing else.

    python -m benchmarks.photos.limit PHOTO.jpg --seconds 5 [--processes 2]

Reads BENCH_FACTS and BENCH_MODEL as the peers do, and uses their classifier: one photo after another, batch 1. Prints
one JSON object. All processes begin and end together.
"""

import argparse
import json
import multiprocessing
import os
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

from benchmarks.serving.processes import pss_bytes

Outcome = tuple[list[float], float]  # milliseconds of each photo, CPU seconds


def work(encoded: bytes, seconds: float, together: Barrier, outcomes: "Queue[Outcome]") -> None:
    from benchmarks.photos.peers.classifier import Classifier

    classifier = Classifier()
    classifier.answer(encoded)
    together.wait()
    spent, milliseconds = time.process_time(), []
    before = time.perf_counter()
    end = before + seconds
    while before < end:
        classifier.answer(encoded)
        after = time.perf_counter()
        milliseconds.append(1000 * (after - before))
        before = after
    outcomes.put((milliseconds, time.process_time() - spent))
    together.wait()  # its memory stays until that of all is measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photo", type=Path)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    together, outcomes = context.Barrier(arguments.processes + 1), context.Queue()
    encoded = arguments.photo.read_bytes()
    workers = [
        context.Process(target=work, args=(encoded, arguments.seconds, together, outcomes))
        for _ in range(arguments.processes)
    ]
    for worker in workers:
        worker.start()
    together.wait()
    found = [outcomes.get() for _ in workers]
    memory = sum(pss_bytes(worker.pid) for worker in workers if worker.pid is not None)
    together.wait()
    for worker in workers:
        worker.join()
    times = sorted(one for milliseconds, _ in found for one in milliseconds)
    figures = {
        "images": len(times),
        # By the time that each process took: the last photo of each ends a little after the others' end.
        "images_per_second": sum(1000 * len(milliseconds) / sum(milliseconds) for milliseconds, _ in found),
        "p50_ms": times[len(times) // 2],
        "p99_ms": times[min(len(times) - 1, int(0.99 * len(times)))],
        "cpu_seconds": sum(cpu for _, cpu in found),
        "pss_mb": memory / 1e6,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
