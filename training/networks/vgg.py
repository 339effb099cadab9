"""VGG13 for small images: ten 3×3 convolutions with batch norm, five max pools, one linear layer.

Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2015, arXiv:1409.1556),
configuration B. As in the code published with the confidence paper (github.com/uoguelph-mlrg/confidence_estimation),
batch norm follows every convolution, one linear layer replaces the three of the ImageNet network, and the weights
start as torch initialises them.
"""

from torch import nn

from training.networks.branch import Classifier
from training.networks.sizes import require_size

STAGES = (64, 128, 256, 512, 512)  # two convolutions each, then a max pool
SMALLEST = 2 ** len(STAGES)


def vgg13(classes: int, size: int = 32, stages: tuple[int, ...] = STAGES) -> Classifier:
    """VGG13; from images of 64 pixels on, the features left after the last pool are averaged."""
    require_size("vgg13", size, SMALLEST)
    layers: list[nn.Module] = []
    channels = 3
    for width in stages:
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    if size // SMALLEST > 1:
        layers.append(nn.AdaptiveAvgPool2d(1))
    body = nn.Sequential(*layers, nn.Flatten())
    return Classifier(body, nn.Linear(channels, classes), feature_width=channels)
