"""The cost of a confidence branch on all layers: a forward graph with it against the same without it, on one thread.

    python -m benchmarks.branch_serving_cost [--rounds N] [--hidden 512 256 128]

Both graphs run in turn, and which goes first alternates. The ratio is the median over the rounds of one run with the
branch to one without it, in CPU time of this thread, so that other work on the machine affects both or neither. Weights
are random: their values do not change the cost.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import torch

from benchmarks.neighbours_cost import pairs, session
from training.graphs.branch import Branch, add_branch
from training.graphs.from_torch import export_network
from training.graphs.layers import with_branch_input
from training.networks import build_network

GOAL = 1.05
NETWORKS = (("torchvision:resnet18", 224), ("torchvision:mobilenet_v3_small", 224), ("compact", 32))
BATCHES = (1, 8)


def with_random_branch(forward: onnx.ModelProto, hidden: list[int]) -> tuple[onnx.ModelProto, list[int]]:
    random = np.random.default_rng(0)
    _, widths = with_branch_input(forward)
    sizes = [sum(widths), *hidden, 1]
    layers = tuple(
        (random.normal(size=(read, made)).astype(np.float32) / np.float32(read**0.5), np.zeros(made, np.float32))
        for read, made in pairwise(sizes)
    )
    branch = Branch(np.zeros(sizes[0], np.float32), np.ones(sizes[0], np.float32), layers)
    return add_branch(forward, branch), widths


def measure(name: str, size: int, options: argparse.Namespace) -> None:
    forward = export_network(build_network(name, 10, size).eval(), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), size)
    scored, widths = with_random_branch(forward, options.hidden)
    print(f"{name}: {widths[0]} features and {sum(widths[1:])} channels of {len(widths) - 1} layers")
    plain, branched = session(forward), session(scored)
    for batch in BATCHES:
        images = np.random.default_rng(0).integers(0, 256, (batch, size, size, 3), dtype=np.uint8)
        rounds = max(options.rounds // batch, 1)
        taken = list(pairs(plain, branched, images, rounds + 5))[5:]
        without, with_branch = (statistics.median(times) for times in zip(*taken, strict=True))
        ratio = statistics.median(b / a for a, b in taken)
        print(f"{name:32} {batch:5} {rounds:6} {without:10.3f} {with_branch:10.3f} {ratio:8.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400, help="pairs at batch 1; an eighth of them at batch 8")
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 256, 128], help="widths of the branch's layers")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # torch's exporter warns about itself
    torch.manual_seed(0)
    print(f"onnxruntime {onnxruntime.__version__}, 1 thread, hidden {options.hidden}, goal {GOAL} × forward")
    print(f"{'network':32} {'batch':>5} {'rounds':>6} {'without ms':>10} {'with ms':>10} {'ratio':>8}")
    for name, size in NETWORKS:
        measure(name, size, options)


if __name__ == "__main__":
    main()
