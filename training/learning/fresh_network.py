"""The network of a recipe before its first step: random weights from the seed, whitened where it is `compact`."""

import copy

import torch
from torch import Tensor

from training.data.normalise import normalise
from training.data.splits import Splits
from training.errors import RecipeError
from training.graphs.torch_layers import add_branch_of
from training.learning.augmentation.batch import shrink_early
from training.networks import Classifier, build_network, whiten
from training.recipe import Recipe

WHITENING_PIXELS = 5_000 * 32 * 32  # enough 2×2 patches for a 12×12 covariance, many times over


def fresh_network(recipe: Recipe, splits: Splits, seed: int, mean: Tensor, std: Tensor) -> Classifier:
    """The recipe's network, with a branch if it asks for one; the weights follow from the seed."""
    torch.manual_seed(seed)
    size = splits.train.images.shape[1]
    network = build_network(recipe.network.name, len(splits.label_names), size, recipe.network.widths)
    add_branch_of(network, recipe.confidence, size)
    if recipe.network.name == "compact":
        sample = torch.from_numpy(splits.train.images[: max(1, WHITENING_PIXELS // size**2)])
        whiten(network, normalise(sample, mean, std))
    _check_early_images(network, recipe, size)
    return network


def _check_early_images(network: Classifier, recipe: Recipe, size: int) -> None:
    """Fails before training starts if the network does not take the smaller images of its first part."""
    settings = recipe.augment
    if settings.early_share == 0 or settings.early_scale == 1:
        return
    trial = copy.deepcopy(network).train()  # a copy, because batch norms keep statistics of what they see
    small = shrink_early(torch.zeros(2, 3, size, size), 0.0, settings)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            trial(small)
    except RuntimeError as problem:
        raise RecipeError(
            f"augment.early_scale is {settings.early_scale}: the first images would be {small.shape[2]} pixels wide, "
            f"and network {recipe.network.name} for {size} pixels does not take those. Use --set augment.early_share=0."
        ) from problem
