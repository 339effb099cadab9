"""Input preprocessing of networks with attention, as torchvision builds them, against torch autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import training.torchvision_shim  # noqa: F401 (before torchvision)

# isort: split
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

from tests.training.graphs.gradient_reference import autograd, export, input_gradient, run
from training.graphs.gradient import add_input_preprocessing

EPSILON, SIZE, CLASSES = 0.01, 32, 5
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "vit": partial(
        *(VisionTransformer, SIZE, 8), num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=CLASSES
    ),
    # Two blocks, of which the second has shifted windows; patches are merged between the stages.
    "swin": partial(SwinTransformer, [4, 4], 8, [2, 1], [2, 2], [4, 4], num_classes=CLASSES),
    "convnext": partial(ConvNeXt, [CNBlockConfig(8, 12, 1), CNBlockConfig(12, None, 1)], num_classes=CLASSES),
}


class LogLargestSoftmax(nn.Module):
    """What ODIN raises; its gradient has the sign of the one that the graph computes."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.network(x) / 1000, 1).amax(1)


@pytest.fixture(scope="module", params=NETWORKS)
def network(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    network = NETWORKS[request.param]().eval()
    for parameter in network.parameters():
        if parameter.abs().max() < 0.2:  # fresh heads are zero or small and layer scales tiny: they hide a gradient
            nn.init.normal_(parameter, std=0.2)
    return network


@pytest.mark.parametrize("dynamo", [False, True], ids=["older exporter", "newer exporter"])
def test_preprocessed_logits_equal_autograds(network: nn.Module, dynamo: bool) -> None:
    """Under 0.1 % of signs differ from torch's in float64, and the preprocessed logits by at most 1e-4."""
    forward = export(network, torch.zeros(2, 3, SIZE, SIZE), ["logits"], dynamo=dynamo)
    preprocessed, gradient = add_input_preprocessing(forward), input_gradient(forward)
    for batch in (1, 5):
        x = torch.randn(batch, 3, SIZE, SIZE)
        direction = autograd(LogLargestSoftmax(network.double()), x.double()).sign()
        signs = np.sign(run(gradient, normalised=x.numpy())["gradient"])
        assert (signs != direction.numpy()).mean() < 1e-3
        with torch.no_grad():
            expected = network(x.double() + EPSILON * torch.from_numpy(signs)).numpy()
            clean = network(x.double()).numpy()
        network.float()
        found = run(preprocessed, normalised=x.numpy(), epsilon=np.array(EPSILON, np.float32))
        np.testing.assert_allclose(found["logits"], clean, atol=1e-4)
        np.testing.assert_allclose(found["logits_preprocessed"], expected, atol=1e-4)
        assert np.abs(expected - clean).max() > 1e-2  # else the agreement would mean little
