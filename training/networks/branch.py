"""The confidence branch, and the one shape every network has: body → features → class head and confidence branch."""

from typing import NamedTuple

from torch import Tensor, nn


class Output(NamedTuple):
    logits: Tensor  # [N,K]
    confidence_logit: Tensor | None  # [N]; None for a network without the branch


class Classifier(nn.Module):
    """A body that gives [N,D] features, a head that turns them into logits, and maybe a confidence branch."""

    def __init__(self, body: nn.Module, head: nn.Module, feature_width: int) -> None:
        super().__init__()
        self.body, self.head, self.feature_width = body, head, feature_width
        self.branch: nn.Module | None = None
        self.branch_shapes_features = True  # in training; false: its loss ends where the branch begins

    def forward(self, x: Tensor) -> Output:
        features = self.body(x)
        if self.branch is None:
            return Output(self.head(features), None)
        read = features if self.branch_shapes_features else features.detach()
        return Output(self.head(features), self.branch(read).squeeze(1))


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


def add_confidence_branch(network: Classifier, hidden: tuple[int, ...] = (), activation: str = "relu") -> Classifier:
    """Adds fully connected layers from the penultimate features to one confidence logit; () is a single Linear."""
    layers: list[nn.Module] = []
    width = network.feature_width
    for next_width in hidden:
        layers += [nn.Linear(width, next_width), ACTIVATIONS[activation]()]
        width = next_width
    network.branch = nn.Sequential(*layers, nn.Linear(width, 1))
    return network
