"""Accuracy during training. The reported accuracy of a finished model is measured on its bundle instead."""

import torch
import torch.nn.functional as F
from torch import Tensor

from training.data.normalise import normalise
from training.data.splits import LabelledImages
from training.networks import Classifier

BATCH_PIXELS = 500 * 32 * 32


def accuracy(network: Classifier, part: LabelledImages, mean: Tensor, std: Tensor) -> float:
    """The share of correctly classified images, in evaluation mode and fp32, on the device of `mean`."""
    return accuracy_and_loss(network, part, mean, std)[0]


@torch.no_grad()
def accuracy_and_loss(network: Classifier, part: LabelledImages, mean: Tensor, std: Tensor) -> tuple[float, float]:
    """The same, and the mean cross-entropy of the images."""
    network.eval()
    batch = max(1, BATCH_PIXELS // (part.images.shape[1] * part.images.shape[2]))
    right, loss = 0, 0.0
    for start in range(0, len(part), batch):
        images = torch.from_numpy(part.images[start : start + batch]).to(mean.device)
        logits = network(normalise(images, mean, std)).logits.cpu()
        labels = torch.from_numpy(part.labels[start : start + batch])
        right += int((logits.argmax(1) == labels).sum())
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
    return right / len(part), loss / len(part)
