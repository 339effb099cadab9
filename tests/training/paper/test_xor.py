"""Confidence on XOR: the two observations of the paper, and that a stack of networks is trained like one."""

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from training.cli.main import app
from training.learning.loss import BudgetController, confidence_loss
from training.networks import add_confidence_branch, mlp
from training.paper import xor
from training.paper.xor import NOISES, Setting, square_grid, train_stack, xor_points

SEEDS = range(4)
BUDGET = 0.3  # the budget of the paper's figure


@pytest.fixture(scope="module")
def confidence():
    """c [seeds, noises, points] at the points of a grid over the four squares, and the grid."""
    grid = square_grid(side=61, reach=1.0)
    stack = train_stack([Setting(BUDGET, noise, seed) for seed in SEEDS for noise in NOISES])
    _, c = stack.outputs(grid)
    return c.reshape(len(SEEDS), len(NOISES), -1), grid


def test_confidence_is_low_where_classes_mix(confidence):
    """For every seed and noise, mean c within 0.1 of a border is 0.15 or more below that in the middle of the squares,
    and 0.4 or more below it at a noise of up to 10 %.
    """
    c, grid = confidence
    from_border = grid.abs().min(dim=1).values
    gap = c[..., from_border > 0.4].mean(dim=-1) - c[..., from_border < 0.1].mean(dim=-1)
    assert gap.min() > 0.15
    assert gap[:, :2].min() > 0.4


def test_lower_bound_of_confidence_rises_with_noise(confidence):
    """At one budget, the 1st percentile of c averaged over four seeds rises by 0.04 or more from each noise to the
    next, and in every single seed by 0.25 or more from 0 to 30 %.
    """
    c, _ = confidence
    lowest = c.quantile(0.01, dim=-1)
    assert lowest.mean(dim=0).diff().min() > 0.04
    assert (lowest[:, -1] - lowest[:, 0]).min() > 0.25


def test_noise_displaces_points_and_keeps_their_classes():
    """Without noise the class is the sign of x·y; with noise the same points have moved by the deviation that was asked
    for and carry the same classes, so that some lie in a square of the other class.
    """
    clean, labels = xor_points(noise=0.0, seed=1, samples=4_000)
    assert clean.abs().max() <= 1
    assert torch.equal(labels, (clean.prod(dim=1) > 0).long())
    assert 0.4 < labels.float().mean() < 0.6
    noisy, same_labels = xor_points(noise=0.2, seed=1, samples=4_000)
    assert torch.equal(same_labels, labels)
    assert (noisy - clean).std().item() == pytest.approx(0.2, rel=0.05)
    assert 0.1 < ((noisy.prod(dim=1) > 0).long() != labels).float().mean() < 0.4


def test_a_network_in_a_stack_is_trained_as_if_alone(monkeypatch):
    """One epoch in a stack of three gives each network the weights, and so the λ, of a plain loop over it alone."""
    monkeypatch.setattr(xor, "EPOCHS", 1)
    settings = [Setting(0.3, 0.1, seed=5), Setting(0.8, 0.1, seed=5), Setting(0.3, 0.3, seed=6)]
    stack = train_stack(settings)
    for k, setting in enumerate(settings):
        alone = trained_alone(setting)
        for name, weight in alone.state_dict().items():
            torch.testing.assert_close(stack.weights[name][k], weight, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(stack.weights["branch.0.weight"][0], stack.weights["branch.0.weight"][1], atol=1e-3)


def trained_alone(setting):
    """What `train_stack` does, one network and one step at a time."""
    torch.manual_seed(setting.seed)
    network = add_confidence_branch(mlp(2, 2), (100,))
    optimiser = torch.optim.SGD(network.parameters(), lr=xor.LEARNING_RATE, momentum=xor.MOMENTUM)
    controller = BudgetController(setting.budget, xor.INITIAL_WEIGHT, total_steps=50, rule=xor.RULE)
    points, labels = xor_points(setting.noise, setting.seed)
    generator = torch.Generator().manual_seed(setting.seed)
    order = torch.randperm(500, generator=generator)
    hinted = torch.rand(500, generator=generator) < 0.5
    for start in range(0, 500, 10):
        batch = order[start : start + 10]
        logits, z = network(points[batch])
        parts = confidence_loss(logits, z, labels[batch], hinted[start : start + 10], controller.weight)
        optimiser.zero_grad()
        parts.total.backward()
        optimiser.step()
        controller.update(parts.confidence.item())
    return network


def test_square_grid_runs_row_by_row_from_the_bottom():
    """Its points, reshaped to side×side, are an image with x to the right and y upwards."""
    grid = square_grid(side=3, reach=2.0).reshape(3, 3, 2)
    assert grid[0, :, 0].tolist() == [-2.0, 0.0, 2.0]
    assert grid[:, 0, 1].tolist() == [-2.0, 0.0, 2.0]


def test_command_draws_the_grid(monkeypatch, tmp_path):
    """`confgate-train xor --out DIR` writes DIR/xor.png: six budgets by four noises, in colour, higher than wide."""
    monkeypatch.setattr(xor, "EPOCHS", 1)
    result = CliRunner().invoke(app, ["xor", "--out", str(tmp_path / "figure")])
    assert result.exit_code == 0, result.output
    with Image.open(tmp_path / "figure" / "xor.png") as image:
        width, height = image.size
        pixels = np.asarray(image.convert("RGB"))[::8, ::8].astype(int)
    assert height > width > 1_000
    coloured = np.ptp(pixels, axis=2) > 40
    assert coloured.mean() > 0.25
    assert len(np.unique(pixels[coloured] @ [1 << 16, 1 << 8, 1])) > 100


def test_help_shows_an_example():
    """`confgate-train xor --help` ends in a line that can be pasted."""
    result = CliRunner().invoke(app, ["xor", "--help"])
    assert "confgate-train xor --out runs/xor" in result.output
