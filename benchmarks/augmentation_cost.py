"""The share of loading and augmentation in the time of a training step of `compact`.

    python -m benchmarks.augmentation_cost
    python -m benchmarks.augmentation_cost --steps 20 --threads 1

The share covers drawing the batch (order, crop, flip, Cutout, hints) and normalising it; the whole is everything that
training does in a step. Images are random bytes of CIFAR-10's size: their content does not change the cost. The figures
are medians over the steps, as wall time and as CPU time of the process. CPU time is reliable on a busy machine too. The
goal is under 5 %.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from service.model.bundle import Input
from training.data.normalise import normalise
from training.data.splits import LabelledImages, Splits
from training.learning.batches import Batch
from training.learning.loop import Run
from training.recipe import load_recipe

IMAGES, SIZE, CLASSES, GOAL = 10_000, 32, 10, 0.05
Times = tuple[float, float]  # wall, CPU


def clock() -> Times:
    return time.perf_counter(), time.process_time()


def since(start: Times) -> Times:
    now = clock()
    return now[0] - start[0], now[1] - start[1]


def random_splits() -> Splits:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (IMAGES, SIZE, SIZE, 3), dtype=np.uint8)
    part = LabelledImages(images, np.arange(IMAGES) % CLASSES)
    few = part.take(np.arange(CLASSES))
    target = Input(width=SIZE, height=SIZE, resize="stretch", interpolation="bicubic")
    return Splits(part, few, few, few, tuple(str(k) for k in range(CLASSES)), "random", target)


def measure(steps: int) -> list[tuple[Times, Times]]:
    """The cost of (loading and augmentation, the whole step) for each step after the first, which warms up."""
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        run = Run(load_recipe("compact-cifar10"), random_splits(), 0, Path(folder))
        batches = run.batches.between(0, steps + 1)
        for _ in range(steps + 1):
            start = clock()
            batch: Batch = next(batches)
            loading = since(start)
            start = clock()
            normalise(batch.images, run.mean, run.std).mul(batch.kept[:, None])
            normalising = since(start)
            start = clock()
            run._train_step(0, batch)  # normalises the batch again
            training = since(start)
            cost = (loading[0] + normalising[0], loading[1] + normalising[1])
            measured.append((cost, (loading[0] + training[0], loading[1] + training[1])))
    return measured[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    measured = measure(arguments.steps)
    print(f"compact, batch 500, {arguments.threads} threads, torch {torch.__version__}, n={len(measured)} steps")
    for kind, name in enumerate(("wall", "CPU")):
        cost = statistics.median(cost[kind] for cost, _ in measured)
        whole = statistics.median(whole[kind] for _, whole in measured)
        share = cost / whole
        verdict = f"goal < {GOAL:.0%}: {'ok' if share < GOAL else 'MISSED'}"
        print(f"{name:>5} time: {1000 * cost:7.1f} ms of {1000 * whole:8.1f} ms = {share:.2%} ({verdict})")


if __name__ == "__main__":
    main()
