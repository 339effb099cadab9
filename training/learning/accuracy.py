"""Accuracy during training. The reported accuracy of a finished model is measured on its bundle instead."""

import torch
from torch import Tensor

from training.data.normalise import normalise
from training.data.splits import LabelledImages
from training.networks import Classifier

BATCH_PIXELS = 500 * 32 * 32


@torch.no_grad()
def accuracy(network: Classifier, part: LabelledImages, mean: Tensor, std: Tensor) -> float:
    """The share of correctly classified images, in evaluation mode and fp32, on the device of `mean`."""
    network.eval()
    batch = max(1, BATCH_PIXELS // (part.images.shape[1] * part.images.shape[2]))
    right = 0
    for start in range(0, len(part), batch):
        images = torch.from_numpy(part.images[start : start + batch]).to(mean.device)
        predicted = network(normalise(images, mean, std)).logits.argmax(1).cpu().numpy()
        right += int((predicted == part.labels[start : start + batch]).sum())
    return right / len(part)
