"""Orthogonal steps for filter banks, beside plain SGD for everything else."""

import copy

import pytest
import torch

from training.learning.optimiser import OrthogonalSGD, make_optimiser, orthogonal_like
from training.networks import add_confidence_branch, build_network
from training.recipe import load_recipe


def settings(*changes):
    return load_recipe("compact-cifar10", ["optimiser.momentum=0.5", *changes]).optimiser


@pytest.mark.parametrize("shape", [(8, 40), (40, 8), (16, 16)])
def test_an_orthogonal_step_has_the_directions_of_the_svd_and_nearly_equal_lengths(shape):
    """Against numpy's SVD: the same singular vectors, every singular value between 0.6 and 1.3."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    u, _, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    inner = u.T @ orthogonal_like(matrix).double() @ v.T
    lengths = inner.diagonal()
    assert ((lengths > 0.6) & (lengths < 1.3)).all()
    assert (inner - torch.diag(lengths)).abs().max() < 1e-4


def test_a_filter_bank_keeps_its_norm_and_moves_by_the_rate():
    """One step: the bank is scaled to √(output channels), then moved along the orthogonal matrix of its gradient."""
    bank = torch.nn.Parameter(torch.randn(6, 3, 3, 3, generator=torch.Generator().manual_seed(0)))
    gradient = torch.randn(6, 3, 3, 3, generator=torch.Generator().manual_seed(1))
    before = bank.detach().clone()
    optimiser = OrthogonalSGD([{"params": [bank], "orthogonal": True}], lr=0.1, momentum=0.5, nesterov=True)
    bank.grad = gradient.clone()
    optimiser.step()
    expected = before * 6**0.5 / before.norm() - 0.1 * orthogonal_like(1.5 * gradient.flatten(1)).view_as(before)
    assert torch.allclose(bank, expected, atol=1e-6)
    assert torch.equal(bank.grad, gradient)


def test_only_filters_of_the_body_step_orthogonally():
    """Head, branch and offsets take the very steps of SGD, whatever the filters do."""
    steps = []
    for rate in ("0.0", "0.1"):
        torch.manual_seed(0)
        network = add_confidence_branch(build_network("compact", 10, 32, (8, 8, 8)), (4,))
        optimiser = make_optimiser(network, settings(f"optimiser.filter_rate={rate}"))
        for group in optimiser.param_groups:
            group["lr"] = group["full_rate"]
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
        optimiser.step()
        steps.append(dict(network.named_parameters()))
    for name, value in steps[0].items():
        same = torch.equal(value, steps[1][name])
        assert same != (value.ndim == 4 and value.requires_grad), name


def test_orthogonal_steps_go_on_from_a_checkpoint():
    """The momentum of the filters is in the optimiser's state."""
    torch.manual_seed(0)
    gradients = [torch.randn(4, 2, 3, 3) for _ in range(2)]
    start = torch.randn(4, 2, 3, 3)

    def made(value):
        bank = torch.nn.Parameter(value.clone())
        return bank, OrthogonalSGD([{"params": [bank], "orthogonal": True}], lr=0.1, momentum=0.9, nesterov=True)

    whole, optimiser = made(start)
    whole.grad = gradients[0]
    optimiser.step()
    resumed, second = made(whole.detach())
    second.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    for bank, chosen in ((whole, optimiser), (resumed, second)):
        bank.grad = gradients[1]
        chosen.step()
    assert torch.equal(whole, resumed)
