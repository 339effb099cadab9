"""The cost of the confidence branch: the time of a training step with and without it, on `compact`.

    python -m benchmarks.branch_cost
    python -m benchmarks.branch_cost --steps 40 --batch 500

Two networks with the recipe's sizes take turns on the same synthetic images, so that other work on the machine affects
both; which one goes first alternates. A step is what training does between two batches: forward, loss, backward,
optimiser, budget. The goal is a ratio of at most 1.05.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from training.learning.loss import BudgetController, confidence_loss
from training.learning.optimiser import make_optimiser
from training.networks import add_confidence_branch, build_network
from training.recipe import Recipe, load_recipe

CLASSES, SIZE, GOAL = 10, 32, 1.05


def make_step(recipe: Recipe, images: torch.Tensor, labels: torch.Tensor, *, with_branch: bool) -> Callable[[], None]:
    """A function that trains one new network for one step per call."""
    torch.manual_seed(0)
    network = build_network(recipe.network.name, CLASSES, SIZE, recipe.network.widths).train()
    settings = recipe.confidence
    if with_branch:
        add_confidence_branch(network, settings.branch_hidden)
    optimiser = make_optimiser(network, recipe.optimiser)
    controller = BudgetController(settings.budget, settings.initial_weight, total_steps=1_000)

    def step() -> None:
        logits, z = network(images)
        if z is None:
            loss = F.cross_entropy(logits, labels)
        else:
            hinted = torch.rand(len(labels)) < settings.hint_probability
            parts = confidence_loss(logits, z, labels, hinted, controller.weight)
            loss = parts.total
            controller.update(parts.confidence.item())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        optimiser.step()

    return step


def seconds(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def measure(recipe: Recipe, batch: int, steps: int, warm_up: int = 2) -> tuple[list[float], list[float]]:
    """Seconds of each step without and with the branch, taken in turns."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, SIZE, SIZE, 3, generator=generator).permute(0, 3, 1, 2)  # channels last, as in training
    labels = torch.randint(CLASSES, (batch,), generator=generator)
    plain = make_step(recipe, images, labels, with_branch=False)
    branched = make_step(recipe, images, labels, with_branch=True)
    without: list[float] = []
    with_branch: list[float] = []
    for turn in range(warm_up + steps):
        pair = [(plain, without), (branched, with_branch)]
        for step, times in pair if turn % 2 == 0 else reversed(pair):
            times.append(seconds(step))
    return without[warm_up:], with_branch[warm_up:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time of a training step with and without the confidence branch, on compact.",
        epilog="Example: python -m benchmarks.branch_cost --steps 20",
    )
    parser.add_argument("--steps", type=int, default=30, help="measured steps per network (default 30)")
    parser.add_argument("--batch", type=int, default=None, help="images per step (default: the recipe's)")
    options = parser.parse_args()
    recipe = load_recipe("compact-cifar10")
    batch = options.batch or recipe.optimiser.batch_size
    without, with_branch = measure(recipe, batch, options.steps)
    ratio = statistics.median(b / a for a, b in zip(without, with_branch, strict=True))
    print(f"without the branch  {statistics.median(without) * 1e3:8.1f} ms per step (median)")
    print(f"with the branch     {statistics.median(with_branch) * 1e3:8.1f} ms per step (median)")
    print(
        f"ratio {ratio:.3f}: median of n={options.steps} pairs, batch {batch}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}; goal: at most {GOAL}"
    )


if __name__ == "__main__":
    main()
