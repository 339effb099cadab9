"""A branch that is trained in torch reads what a branch on the exported graph reads, in every network."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.training.graphs.branch_reference import MEAN, STD, noise, normalised
from training.errors import RecipeError
from training.graphs.from_torch import export_network
from training.graphs.layers import with_branch_input
from training.graphs.run import open_graph, run_graph
from training.graphs.torch_layers import shown_layers
from training.networks import Classifier, add_confidence_branch, build_network
from training.networks.vgg import vgg13

SIZE = 32
NETWORKS = {
    "compact": lambda: build_network("compact", 5, SIZE, (4, 6, 8)),
    "vgg13": lambda: vgg13(5, SIZE, stages=(4, 4, 6, 6, 8)),
    "wide resnet": lambda: build_network("wrn-10-1", 5, SIZE),
    "torchvision:resnet18, whose activations are used twice": lambda: build_network("torchvision:resnet18", 5, SIZE),
}


@pytest.fixture(scope="module", params=NETWORKS)
def network(request: pytest.FixtureRequest) -> Classifier:
    torch.manual_seed(0)
    return NETWORKS[request.param]()


def test_torch_and_the_graph_read_the_same(network: Classifier) -> None:
    """Features and channel means, layer by layer; and so does a copy of the network, as its moving average is one."""
    layers = shown_layers(network, SIZE)
    shown, widths = with_branch_input(export_network(network.eval(), MEAN, STD, SIZE))
    images = noise(4, seed=3)
    expected = run_graph(open_graph(shown), images)["branch_input"]
    assert [layer.channels for layer in layers] == widths[1:]
    branched = add_confidence_branch(network, layers=layers)
    for one in (branched, copy.deepcopy(branched)):
        read: list[torch.Tensor] = []
        assert one.branch is not None
        one.branch.register_forward_pre_hook(lambda _branch, inputs, read=read: read.append(inputs[0]))
        with torch.no_grad():
            one(normalised(images))
        assert len(read) == 1
        np.testing.assert_allclose(read[0].numpy(), expected, rtol=1e-3, atol=1e-4)


class Hidden(nn.Module):
    """An activation that is a plain function, between modules that neither take nor give its result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.pad(self.first(x).relu(), (0, 5, 0, 0))
        return self.second(x).relu().mean((2, 3))


def test_a_layer_that_no_module_shows_is_refused() -> None:
    """The error names the command that gives such a network a branch."""
    network = Classifier(Hidden(), nn.Linear(6, 5), 6)
    with pytest.raises(RecipeError, match=r"branch_reads=layers.*learn-confidence RUN"):
        shown_layers(network, SIZE)
