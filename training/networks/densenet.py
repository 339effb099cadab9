"""DenseNet-BC: three dense blocks of bottleneck layers, with transitions between them that halve channels and sides.

Huang et al., "Densely Connected Convolutional Networks" (2017, arXiv:1608.06993), CIFAR form with compression 0.5,
without dropout. The paper's network has depth L = 100 and growth rate k = 12.
"""

import torch
from torch import Tensor, nn

from training.errors import RecipeError
from training.networks.branch import Classifier
from training.networks.initialise import initialise_like_he
from training.networks.sizes import require_size

SMALLEST = 4  # two halvings


class DenseLayer(nn.Module):
    """Adds `growth` channels to those it was given: a 1×1 convolution to 4·growth channels, then a 3×3 one."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.added = nn.Sequential(
            *_normalised_convolution(channels, 4 * growth, 1), *_normalised_convolution(4 * growth, growth, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.added(x)], dim=1)


def _normalised_convolution(channels: int, width: int, kernel: int) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=False)
    return [nn.BatchNorm2d(channels), nn.ReLU(), convolution]


def check_densenet_bc(depth: int, growth: int) -> None:
    """Fails for a depth or growth rate that no DenseNet-BC has."""
    name = f"densenet-bc-{depth}-{growth}"
    if depth < 10 or (depth - 4) % 6 or growth < 1:
        raise RecipeError(
            f"network.name is '{name}', expected densenet-bc or densenet-bc-DEPTH-GROWTH with a depth of 10, 16, 22, … "
            f"and a growth of 1 or more, for example densenet-bc-100-12."
        )


def densenet_bc(classes: int, size: int = 32, depth: int = 100, growth: int = 12) -> Classifier:
    """DenseNet-BC of this depth L and growth rate k."""
    check_densenet_bc(depth, growth)
    require_size(f"densenet-bc-{depth}-{growth}", size, SMALLEST)
    channels = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
    for block in range(3):
        for _ in range((depth - 4) // 6):
            layers.append(DenseLayer(channels, growth))
            channels += growth
        if block < 2:
            layers += [*_normalised_convolution(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    network = Classifier(nn.Sequential(*layers), nn.Linear(channels, classes), feature_width=channels)
    initialise_like_he(network)
    return network
