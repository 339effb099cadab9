"""The cost of input preprocessing: one forward pass against forward, backward and forward again, on one thread.

    python -m benchmarks.gradient_cost [NETWORK …] [--batch N …] [--rounds N]

Both graphs run in turn. Each is judged by its best round in CPU time of this thread, so that other work on the machine
affects both or neither. Weights are random: they do not change the cost.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch

from training.graphs.from_torch import export_network
from training.graphs.gradient import add_input_preprocessing
from training.networks import add_confidence_branch, build_network

GOAL = 3.6  # times the forward pass, for compact and VGG13
Feeds = dict[str, npt.NDArray[np.generic]]


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def cpu_milliseconds(graph: onnxruntime.InferenceSession, feeds: Feeds) -> float:
    start = time.thread_time()
    graph.run(None, feeds)
    return 1000 * (time.thread_time() - start)


def measure(name: str, size: int, batches: list[int], rounds: int) -> None:
    network = add_confidence_branch(build_network(name, 10, size)).eval()
    forward = export_network(network, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), size)
    clean, perturbed = session(forward), session(add_input_preprocessing(forward))
    for batch in batches:
        image = np.random.default_rng(0).integers(0, 256, (batch, size, size, 3), dtype=np.uint8)
        both: Feeds = {"image": image, "epsilon": np.array(0.01, np.float32)}
        pairs = [(cpu_milliseconds(clean, {"image": image}), cpu_milliseconds(perturbed, both)) for _ in range(rounds)]
        once, thrice = (min(times) for times in zip(*pairs, strict=True))
        print(f"{name:32} {batch:5} {once:12.2f} {thrice:14.2f} {thrice / once:8.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["compact", "vgg13"], metavar="NETWORK")
    parser.add_argument("--size", type=int, default=32, help="side of the images in pixels")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # torch's exporter warns about itself
    torch.manual_seed(0)
    print(f"onnxruntime {onnxruntime.__version__}, 1 thread, best of {arguments.rounds} rounds, goal {GOAL} × forward")
    print(f"{'network':32} {'batch':>5} {'forward ms':>12} {'perturbed ms':>14} {'ratio':>8}")
    for name in arguments.networks:
        measure(name, arguments.size, arguments.batch, arguments.rounds)


if __name__ == "__main__":
    main()
