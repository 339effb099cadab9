"""Whether the work that is counted of a graph says how long it takes.

    python -m benchmarks.counted_work [NETWORK …]

For each network: multiply-adds and values that its forward graph writes for one image (`training.graphs.work`), the CPU
time of ONNX Runtime with one thread (the best run within 4 s), and CPU seconds per 10⁹ of work. Where the weights are
random, the time is the same. A network is NAME@SIDE, as recipes call it, or the .onnx file of a bundle. Without names:
from a small network to a vision transformer.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime

from training.graphs import work
from training.graphs.from_torch import export_network
from training.networks import build_network

NETWORKS = ["models/cifar10/5/model.onnx", "efficientnet-lite0@224"]
NETWORKS += [
    f"torchvision:{name}@224"
    for name in ("mobilenet_v3_small", "resnet18", "resnet50", "convnext_tiny", "swin_t", "vit_b_16")
]
SECONDS = 4.0
PIXELS_AT_ONCE = 2 * 224 * 224  # so that a batch of any network takes a while, and fits


def seconds_an_image(graph: bytes | str) -> float:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    side = int(session.get_inputs()[0].shape[1])
    batch = max(1, PIXELS_AT_ONCE // (side * side))
    images = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    session.run(None, {"image": images})
    spent, best = 0.0, float("inf")
    while spent < SECONDS:
        start = time.process_time()
        session.run(None, {"image": images})
        took = time.process_time() - start
        spent, best = spent + took, min(best, took)
    return best / batch


def main() -> None:
    warnings.simplefilter("ignore")  # torch's exporter warns about itself
    print(f"{'network':36} {'M multiply-adds':>16} {'M values':>9} {'ms':>8} {'CPU s per 1e9':>14}")
    for named in sys.argv[1:] or NETWORKS:
        name, _, side = named.partition("@")
        size = int(side or 224)
        graph: onnx.ModelProto | Path = Path(named)
        if not named.endswith(".onnx"):
            graph = export_network(build_network(name, 1000, size).eval(), (0.5,) * 3, (0.2,) * 3, size)
        whole = work.work_of_one_image(graph)
        with patch.object(work, "OF_A_VALUE", 0):
            products = work.work_of_one_image(graph)
        assert whole is not None
        assert products is not None
        values = (whole - products) / work.OF_A_VALUE
        seconds = seconds_an_image(str(graph) if isinstance(graph, Path) else graph.SerializeToString())
        per_work = seconds / whole * 1e9
        print(
            f"{named:36} {products / 1e6:16,.0f} {values / 1e6:9.1f} {1e3 * seconds:8.1f} {per_work:14.4f}", flush=True
        )


if __name__ == "__main__":
    main()
