"""The multilayer perceptron of the XOR experiment: three hidden layers of 100, then a class head with a hidden layer.

DeVries & Taylor, "Learning Confidence for Out-of-Distribution Detection in Neural Networks" (2018, arXiv:1802.04865),
section 4.1. Its confidence branch is parallel to the head: `add_confidence_branch(network, (100,))`. It has no batch
norm, so what it computes for a sample does not depend on the rest of the batch.
"""

from torch import nn

from training.networks.branch import Classifier

HIDDEN = (100, 100, 100)


def mlp(inputs: int, classes: int, hidden: tuple[int, ...] = HIDDEN) -> Classifier:
    """For points with `inputs` coordinates, or images with `inputs` values; the head's hidden layer is as wide as the
    last of `hidden`.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    width = inputs
    for next_width in hidden:
        layers += [nn.Linear(width, next_width), nn.ReLU()]
        width = next_width
    head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))
    return Classifier(nn.Sequential(*layers), head, feature_width=width)
