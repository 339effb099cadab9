"""The confidence branch, and the form of every network: body → features → class head and confidence branch."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from training.errors import RecipeError

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
        self.branch_reads_layers = False  # also the mean of each channel of the layers before the features
        self.branch_shapes_features = True  # False: gradients of the branch stop at the features

    def forward(self, x: Tensor) -> Output:
        if self.branch is None:
            return Output(self.head(self.body(x)), None)
        features, means = self._features_and_means(x) if self.branch_reads_layers else (self.body(x), [])
        read = torch.cat([features, *means], dim=1) if means else features
        if not self.branch_shapes_features:
            read = read.detach()
        return Output(self.head(features), self.branch(read).squeeze(1))

    def _features_and_means(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The body's output, and the mean over each channel of every activation before it."""
        assert isinstance(self.body, nn.Sequential)
        means = []
        for layer in self.body:
            x = layer(x)
            if _is_activation(layer):
                means.append(x.mean(dim=(2, 3)))
        return x, means


def add_confidence_branch(
    network: Classifier, hidden: tuple[int, ...] = (), activation: str = "relu", reads_layers: bool = False
) -> Classifier:
    """Adds fully connected layers from the penultimate features to one confidence logit; () is a single Linear.

    With `reads_layers` they also read the mean of each channel of the layers before: colours and textures, which
    features that are trained to separate classes have mostly lost.
    """
    layers: list[nn.Module] = []
    width = network.feature_width + (sum(_layer_widths(network)) if reads_layers else 0)
    for next_width in hidden:
        layers += [nn.Linear(width, next_width), ACTIVATIONS[activation]()]
        width = next_width
    network.branch = nn.Sequential(*layers, nn.Linear(width, 1))
    network.branch_reads_layers = reads_layers
    return network


def _is_activation(layer: nn.Module) -> bool:
    return isinstance(layer, tuple(ACTIVATIONS.values()))


def _layer_widths(network: Classifier) -> list[int]:
    """The number of channels of each activation. Fails if the body is not a plain chain of convolutions."""
    chain = list(network.body) if isinstance(network.body, nn.Sequential) else []
    widths: list[int] = []
    channels = 0
    for layer in chain:
        if isinstance(layer, nn.Conv2d):
            channels = layer.out_channels
        if _is_activation(layer):
            widths.append(channels)
    if not widths or 0 in widths or any(list(layer.children()) for layer in chain):
        raise RecipeError(
            "confidence.branch_reads=layers is for networks that are a chain of convolutions and activations (compact, "
            "vgg13). Use confidence.branch_reads=features."
        )
    return widths
