"""Logits of a last linear layer that never saw the image: mistakes for a branch to learn doubt from.

A classifier whose last layer was fitted to some images is right about nearly all of them. So the layer is fitted again,
several times, each time without a part of the images, and each part is judged by the layer that was fitted without it.
Multinomial logistic regression with L2 on the features; how strong it is follows from the likelihood of unseen images.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from training.learning.head.fit import Examples, minimum

FOLDS = 5
# Of the mean squared weight, beside the mean cross-entropy; the best is taken.
# From the strongest on: each layer starts where the one before it ended.
STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4)
ABSENT = 10.0  # how far the logit of a class that no image has lies below all others


@dataclass(frozen=True)
class CrossFitted:
    """Logits [R,K] of rows, each by a layer that saw no view of its image."""

    logits: NDArray[np.float32]
    accuracy: float  # of plain images


def cross_fit(
    features: NDArray[np.float16],
    labels: NDArray[np.int64],
    image: NDArray[np.int64],
    is_plain: NDArray[np.bool_],
    classes: int,
    seed: int = 0,
) -> CrossFitted:
    """`features` [R,D] of rows that are views of images; layers are fitted to the plain ones."""
    fold_of = _folds(labels, image, is_plain, seed)
    fold = fold_of[image]
    present, target = np.unique(labels, return_inverse=True)
    best: tuple[float, NDArray[np.float32]] | None = None
    nothing = torch.zeros(len(present), features.shape[1]), torch.zeros(len(present))
    layers = [nothing] * FOLDS
    for strength in STRENGTHS:
        logits = np.empty((len(labels), classes), np.float32)
        for number in range(FOLDS):
            own = np.flatnonzero(is_plain & (fold != number))
            seen = Examples(torch.from_numpy(np.asarray(features[own], np.float32)), torch.from_numpy(target[own]))
            layers[number] = minimum(seen, torch.ones(len(own)), strength, *layers[number])
            theirs = np.flatnonzero(fold == number)
            answers = _answers(layers[number], features, theirs)
            logits[theirs] = answers.min(axis=1, keepdims=True) - ABSENT
            logits[np.ix_(theirs, present)] = answers
        loss = F.cross_entropy(torch.from_numpy(logits[is_plain]), torch.from_numpy(labels[is_plain])).item()
        if best is None or loss < best[0]:
            best = loss, logits
    assert best is not None
    logits = best[1]
    return CrossFitted(logits, float(np.mean(logits[is_plain].argmax(axis=1) == labels[is_plain])))


def _folds(
    labels: NDArray[np.int64], image: NDArray[np.int64], is_plain: NDArray[np.bool_], seed: int
) -> NDArray[np.int64]:
    """The fold of each image; every class is spread over all folds."""
    rng = np.random.default_rng(seed)
    label_of = np.empty(image.max() + 1, np.int64)
    label_of[image[is_plain]] = labels[is_plain]
    fold = np.empty(len(label_of), np.int64)
    for label in np.unique(label_of):
        members = rng.permutation(np.flatnonzero(label_of == label))
        fold[members] = (np.arange(len(members)) + rng.integers(FOLDS)) % FOLDS
    return fold


@torch.no_grad()
def _answers(
    layer: tuple[Tensor, Tensor], features: NDArray[np.float16], which: NDArray[np.int64]
) -> NDArray[np.float32]:
    weight, bias = layer
    parts = np.array_split(which, max(1, len(which) // 10_000))
    return torch.cat(
        [torch.from_numpy(np.asarray(features[part], np.float32)) @ weight.T + bias for part in parts]
    ).numpy()
