"""The cost of the neighbours score: a forward graph with it against the same graph without it, on one thread.

    python -m benchmarks.neighbours_cost [--rounds N] [--bank N] [--k N]

Both graphs run in turn, and which goes first alternates. The ratio is the median over the rounds of one run with the
score to one without it, in CPU time of this thread, so that other work on the machine affects both or neither. The bank
is random: its values do not change the cost. The second network has fresh weights and images of 224 pixels.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

from service.model.images import Pixels
from training.graphs.features import with_features
from training.graphs.from_torch import export_network
from training.graphs.neighbours import BANK_SIZE, NEIGHBOUR_K, add_neighbours, without_neighbours
from training.networks import build_network

GOAL = 1.03
SHIPPED = Path(__file__).parents[1] / "models" / "cifar10" / "5" / "model.onnx"
LARGE = "torchvision:mobilenet_v3_small"  # the smaller the network, the larger the score's share


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def cpu_milliseconds(graph: onnxruntime.InferenceSession, images: Pixels) -> float:
    start = time.thread_time()
    graph.run(None, {"image": images})
    return 1000 * (time.thread_time() - start)


def with_random_bank(forward: onnx.ModelProto, size: int, k: int) -> onnx.ModelProto:
    width = with_features(forward).graph.output[-1].type.tensor_type.shape.dim[1].dim_value
    bank = np.random.default_rng(0).normal(size=(size, width)).astype(np.float32)
    return add_neighbours(forward, bank, k)


def pairs(
    plain: onnxruntime.InferenceSession, scored: onnxruntime.InferenceSession, images: Pixels, rounds: int
) -> Iterator[tuple[float, float]]:
    """CPU milliseconds without and with the score, side by side."""
    for turn in range(rounds):
        if turn % 2 == 0:
            without = cpu_milliseconds(plain, images)
            yield without, cpu_milliseconds(scored, images)
        else:
            with_score = cpu_milliseconds(scored, images)
            yield cpu_milliseconds(plain, images), with_score


def measure(name: str, forward: onnx.ModelProto, options: argparse.Namespace) -> None:
    size = forward.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    plain, scored = session(forward), session(with_random_bank(forward, options.bank, options.k))
    for batch in (1, 32):
        images = np.random.default_rng(0).integers(0, 256, (batch, size, size, 3), dtype=np.uint8)
        rounds = options.rounds if batch == 1 else max(options.rounds // 8, 1)
        taken = list(pairs(plain, scored, images, rounds + 5))[5:]
        without, with_score = (statistics.median(times) for times in zip(*taken, strict=True))
        ratio = statistics.median(b / a for a, b in taken)
        print(f"{name:32} {batch:5} {rounds:6} {without:10.3f} {with_score:10.3f} {ratio:8.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400, help="pairs at batch 1; an eighth of them at batch 32")
    parser.add_argument("--bank", type=int, default=BANK_SIZE, help="rows of the bank")
    parser.add_argument("--k", type=int, default=NEIGHBOUR_K)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # torch's exporter warns about itself
    torch.manual_seed(0)
    print(f"onnxruntime {onnxruntime.__version__}, 1 thread, bank {options.bank}, k {options.k}, goal {GOAL} × forward")
    print(f"{'network':32} {'batch':>5} {'rounds':>6} {'without ms':>10} {'with ms':>10} {'ratio':>8}")
    measure("models/cifar10/5", without_neighbours(onnx.load(SHIPPED)), options)
    network = build_network(LARGE, 10, 224).eval()
    measure(LARGE, export_network(network, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), 224), options)


if __name__ == "__main__":
    main()
