"""The cost of all metrics of one score: 10,000 in-distribution and 50,000 OOD scores, with and without ties.

python -m benchmarks.metrics_cost [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import numpy.typing as npt

from service.model.scores import Floats
from training.metrics.detection import detection_metrics
from training.metrics.selective import aurc, expected_calibration_error

INSIDE, OUTSIDE = 10_000, 50_000
GOAL = 0.5  # seconds


def all_metrics(inside: Floats, outside: Floats, right: npt.NDArray[np.bool_], probability: Floats) -> None:
    detection_metrics(inside, outside)
    aurc(inside, right)
    expected_calibration_error(probability, right)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time to compute all detection and selective metrics of one score.",
        epilog="Example: python -m benchmarks.metrics_cost --rounds 20",
    )
    parser.add_argument("--rounds", type=int, default=10, help="measured rounds (default 10)")
    options = parser.parse_args()
    random = np.random.default_rng(0)
    inside, outside = random.normal(2, 1, INSIDE), random.normal(0, 1, OUTSIDE)
    right, probability = random.random(INSIDE) < 0.9, random.random(INSIDE)
    all_metrics(inside, outside, right, probability)  # the first call imports scikit-learn
    for kind, decimals in (("distinct scores", None), ("scores of two decimals, full of ties", 2)):
        samples = (inside, outside) if decimals is None else (inside.round(decimals), outside.round(decimals))
        times = []
        for _ in range(options.rounds):
            start = time.perf_counter()
            all_metrics(*samples, right, probability)
            times.append(time.perf_counter() - start)
        print(
            f"{kind}: median {statistics.median(times):.3f} s, worst {max(times):.3f} s of n={options.rounds} for "
            f"{INSIDE:,} against {OUTSIDE:,}; goal: under {GOAL} s"
        )


if __name__ == "__main__":
    main()
