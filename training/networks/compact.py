"""`compact`: a small convolutional network for training on few CPU cores.

Shape after the short-training CIFAR-10 networks of K. Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU" (2024,
arXiv:2404.00498): a fixed 2×2 whitening convolution computed from the training images, three blocks of two 3×3
convolutions with a max pool between them, one max pool over the rest, and a linear head whose output is scaled
down. Convolutions start as the identity on their first channels; batch norms learn an offset only.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.networks.branch import Classifier
from training.networks.sizes import require_size

HEAD_SCALE = 1 / 9
WHITENING_EPSILON = 5e-4
SMALLEST = 9  # one pixel goes to the whitening, then three halvings


class ScaledLinear(nn.Linear):
    """Logits start small, so that the first steps at a high learning rate stay calm."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features) * HEAD_SCALE


class MaxOverAll(nn.MaxPool2d):
    """The largest value of each channel. In training the images may be smaller than those the network is built for.

    Not AdaptiveMaxPool2d, which torch exports as an operator that breaks ties differently.
    """

    def forward(self, features: Tensor) -> Tensor:
        largest: Tensor = F.max_pool2d(features, features.shape[2:]) if self.training else super().forward(features)
        return largest


def compact(classes: int, size: int = 32, widths: tuple[int, int, int] = (64, 256, 256)) -> Classifier:
    """The network for size×size images; `whiten` it with training images before the first step."""
    require_size("compact", size, SMALLEST)
    whitening = nn.Conv2d(3, 24, 2)
    layers: list[nn.Module] = [whitening, nn.GELU()]
    side, channels = size - 1, 24
    for width in widths:
        layers += _block(channels, width)
        side, channels = side // 2, width
    layers += [MaxOverAll(side), nn.Flatten()]
    body = nn.Sequential(*layers)
    body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack this argument
    whitening.weight.requires_grad_(False)
    head = ScaledLinear(channels, classes, bias=False)
    return Classifier(body, head, feature_width=channels)


def _block(channels: int, width: int) -> list[nn.Module]:
    first = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    second = nn.Conv2d(width, width, 3, padding=1, bias=False)
    for convolution in (first, second):
        nn.init.dirac_(convolution.weight.data[: convolution.in_channels])
    return [first, nn.MaxPool2d(2), _norm(width), nn.GELU(), second, _norm(width), nn.GELU()]


def _norm(width: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(width, momentum=0.4)
    norm.weight.requires_grad_(False)
    return norm


@torch.no_grad()
def whiten(network: Classifier, normalised: Tensor) -> None:
    """Sets the first convolution to ± the whitened eigenvectors of the 2×2 patches of normalised training images."""
    assert isinstance(network.body, nn.Sequential)
    convolution = network.body[0]
    assert isinstance(convolution, nn.Conv2d)
    patches = normalised.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
    covariance = (patches.T @ patches / len(patches)).double()
    values, vectors = torch.linalg.eigh(covariance)
    filters = (vectors / (values + WHITENING_EPSILON).sqrt()).T.flip(0).reshape(12, 3, 2, 2)
    convolution.weight.copy_(torch.cat([filters, -filters]))
    assert convolution.bias is not None
    convolution.bias.zero_()
