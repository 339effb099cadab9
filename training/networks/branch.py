"""The confidence branch, and the form of every network: body → features → class head and confidence branch."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from training.networks.layer_means import LayerMeans, ShownLayer

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


class Output(NamedTuple):
    """What every network returns."""

    logits: Tensor  # [N,K]
    confidence_logit: Tensor | None  # [N]; None for a network without the branch


class Classifier(nn.Module):
    """A body that gives [N,D] features, a head that turns them into logits, and an optional confidence branch."""

    def __init__(self, body: nn.Module, head: nn.Module, feature_width: int, head_name: str = "head") -> None:
        super().__init__()
        self.body, self.head, self.feature_width = body, head, feature_width
        self.head_name = head_name  # what the head is called where the network comes from: its weights have that name
        self.branch: nn.Module | None = None
        self.layer_means: LayerMeans | None = None  # what the branch reads beside the features
        self.branch_shapes_features = True  # False: gradients of the branch stop at the features

    def forward(self, x: Tensor) -> Output:
        if self.branch is None:
            return Output(self.head(self.body(x)), None)
        if self.layer_means is None:
            read = features = self.body(x)
        else:
            with self.layer_means.watching():
                features = self.body(x)
                read = torch.cat([features, *self.layer_means.found()], dim=1)
        if not self.branch_shapes_features:
            read = read.detach()
        return Output(self.head(features), self.branch(read).squeeze(1))


def add_confidence_branch(
    network: Classifier, hidden: tuple[int, ...] = (), activation: str = "relu", layers: Sequence[ShownLayer] = ()
) -> Classifier:
    """Adds fully connected layers from the penultimate features to one confidence logit; () is a single Linear.

    With `layers` they also read the mean of each channel of these: colours and textures, which features that are
    trained to separate classes have mostly lost.
    """
    modules: list[nn.Module] = []
    width = network.feature_width + sum(layer.channels for layer in layers)
    for next_width in hidden:
        modules += [nn.Linear(width, next_width), ACTIVATIONS[activation]()]
        width = next_width
    network.branch = nn.Sequential(*modules, nn.Linear(width, 1))
    network.layer_means = LayerMeans(network.body, layers) if layers else None
    return network
