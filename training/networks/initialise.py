"""The initial weights of WideResNet and DenseNet."""

import math

from torch import nn


def initialise_like_he(network: nn.Module) -> None:
    """Convolutions from N(0, 2 / (k²·channels out)), linear offsets at 0; batch norms start as torch has them.

    He et al., "Delving Deep into Rectifiers" (2015, arXiv:1502.01852), in the variant that keeps the variance of
    gradients: the one in the code of both papers.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            height, width = module.kernel_size
            nn.init.normal_(module.weight, std=math.sqrt(2 / (height * width * module.out_channels)))
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
