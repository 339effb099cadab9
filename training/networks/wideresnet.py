"""Wide residual networks WRN-D-W: depth D = 6n + 4, three groups of n blocks, W times as wide as a plain ResNet.

Zagoruyko & Komodakis, "Wide Residual Networks" (2016, arXiv:1605.07146): batch norm and ReLU before each convolution,
no dropout. The confidence paper's networks are WRN-16-8 for SVHN and WRN-28-10 for CIFAR-10.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from training.errors import RecipeError
from training.networks.branch import Classifier
from training.networks.initialise import initialise_like_he
from training.networks.sizes import require_size

STEM = 16
SMALLEST = 4  # two halvings


class Block(nn.Module):
    """Two convolutions beside a shortcut; where the shape changes, the shortcut is a 1×1 convolution."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(channels, width, 1, stride=stride, bias=False) if channels != width else None

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.norm1(x))
        # A shortcut that changes the shape starts from the activated input, as in the published code.
        kept = x if self.shortcut is None else self.shortcut(activated)
        added: Tensor = self.conv2(F.relu(self.norm2(self.conv1(activated))))
        return kept + added


def check_wide_resnet(depth: int, widening: int) -> None:
    """Fails for a depth or width that no WideResNet has."""
    name = f"wrn-{depth}-{widening}"
    if depth < 10 or (depth - 4) % 6 or widening < 1:
        raise RecipeError(
            f"network.name is '{name}', expected wrn-DEPTH-WIDTH with a depth of 10, 16, 22, 28, … and a width of 1 "
            f"or more, for example wrn-28-10."
        )


def wide_resnet(depth: int, widening: int, classes: int, size: int = 32) -> Classifier:
    """WRN-`depth`-`widening`."""
    check_wide_resnet(depth, widening)
    require_size(f"wrn-{depth}-{widening}", size, SMALLEST)
    layers: list[nn.Module] = [nn.Conv2d(3, STEM, 3, padding=1, bias=False)]
    channels = STEM
    for group in range(3):
        width = STEM * 2**group * widening
        for block in range((depth - 4) // 6):
            stride = 2 if group > 0 and block == 0 else 1
            layers.append(Block(channels, width, stride))
            channels = width
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    network = Classifier(nn.Sequential(*layers), nn.Linear(channels, classes), feature_width=channels)
    initialise_like_he(network)
    return network
