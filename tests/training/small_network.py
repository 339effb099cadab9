"""A small network with fixed weights, and images for it."""

import numpy as np
import torch

from service.model.images import Pixels
from training.networks import Classifier, add_confidence_branch, compact

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)
IMAGES: Pixels = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)


def network_with(branch: bool) -> Classifier:
    torch.manual_seed(0)
    net = compact(4, 16, (8, 12, 16))
    return (add_confidence_branch(net, (6,)) if branch else net).eval()
