"""Classes with few images: by weights in the loss, or by showing every class equally often."""

import numpy as np
import torch
from torch import Tensor

from training.data.splits import Labels


def class_weights(labels: Labels, classes: int) -> Tensor:
    """images / (classes · images of the class): the mean weight over all images is 1 (scikit-learn's "balanced").

    Every class has at least one image: `check_classes` has seen to that.
    """
    counts = np.bincount(labels, minlength=classes)
    return torch.from_numpy(len(labels) / (classes * counts)).float()


def balanced_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """As many indices as there are images, equally many of each class (one more of some, where it must be).

    An image of a large class comes at most once, those of a small class equally often (once more for some).
    """
    classes = sorted(set(labels.tolist()))
    share, more = divmod(len(labels), len(classes))
    with_more = set(torch.randperm(len(classes), generator=generator)[:more].tolist())
    drawn = []
    for number, one in enumerate(classes):
        images = torch.nonzero(labels == one).squeeze(1)
        wanted = share + (number in with_more)
        rounds = -(-wanted // len(images))
        shuffled = [images[torch.randperm(len(images), generator=generator)] for _ in range(rounds)]
        drawn.append(torch.cat(shuffled)[:wanted])
    order = torch.cat(drawn)
    return order[torch.randperm(len(order), generator=generator)]
