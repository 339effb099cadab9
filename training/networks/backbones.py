"""`torchvision:NAME`: any of torchvision's classifiers (https://docs.pytorch.org/vision/stable/models.html), cut before
its last linear layer, and the weights that torchvision offers for it.
"""

import difflib
from typing import Any

from torch import Tensor

import training.torchvision_shim  # noqa: F401  (makes the import of torchvision work beside a CPU-only torch)

# isort: split
from torchvision import models

from training.errors import RecipeError
from training.networks.branch import Classifier
from training.networks.cut import cut_before_head
from training.networks.expected import Expected

PREFIX = "torchvision:"
# In training mode these return the logits of extra heads too; a branch needs a network with one head.
WITHOUT_AUXILIARY_HEADS: dict[str, Any] = {"aux_logits": False, "init_weights": True}
WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")


def torchvision_names() -> list[str]:
    """The classifiers, without torchvision's detection, segmentation, video and quantised models."""
    return list(models.list_models(module=models))


def check_torchvision_name(name: str) -> None:
    """Fails if torchvision has no classifier of this name."""
    if name not in torchvision_names():
        near = difflib.get_close_matches(name, torchvision_names(), n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"For example {PREFIX}resnet18."
        raise RecipeError(f"network.name is '{PREFIX}{name}', but torchvision has no classifier '{name}'. {hint}")


def torchvision_classifier(name: str, classes: int, size: int) -> Classifier:
    """The model torchvision calls `name`, with fresh weights as torchvision initialises them."""
    check_torchvision_name(name)
    try:
        model = models.get_model(name, weights=None, num_classes=classes, **_options(name, size))
        return cut_before_head(model, f"{PREFIX}{name}", classes, size)
    except (RuntimeError, AssertionError, ValueError) as problem:
        raise RecipeError(
            f"network '{PREFIX}{name}' cannot take images of {size}×{size} pixels: {problem}"
        ) from problem


def torchvision_expected(name: str, tag: str | None) -> Expected:
    """What the weights of this tag were trained with; without a tag those that torchvision recommends."""
    settings = _weights(name, tag).transforms()
    mean, std = tuple(settings.mean), tuple(settings.std)
    if name in WITH_AUXILIARY_HEADS:
        # Built with its weights, torchvision's model undoes the ImageNet normalisation itself; here it does not.
        mean = std = (0.5, 0.5, 0.5)
    (size,), (resized,) = settings.crop_size, settings.resize_size
    return Expected(mean, std, size, size / resized, settings.interpolation.value)


def torchvision_state(name: str, tag: str | None) -> dict[str, Tensor]:
    """The weights, from torchvision's server or from what an earlier call has kept."""
    weights = _weights(name, tag)
    try:
        state: dict[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True)
    except OSError as problem:  # no route, no such host, refused, timed out
        raise RecipeError(
            f"the weights '{weights.name}' of '{PREFIX}{name}' could not be downloaded ({problem}). Where there is no "
            f"internet, fetch {weights.url} elsewhere and give the file: --weights {weights.url.rpartition('/')[2]}."
        ) from problem
    return state


def _weights(name: str, tag: str | None) -> Any:
    check_torchvision_name(name)
    offered = models.get_model_weights(name)
    if tag is None:
        return offered.DEFAULT
    known = [one.name for one in offered]
    if tag not in known:
        raise RecipeError(
            f"network.weights is '{tag}', but torchvision has for '{PREFIX}{name}': {', '.join(known)}. Expected one "
            f"of these, 'pretrained', or a .pth, .pt or .safetensors file."
        )
    return offered[tag]


def _options(name: str, size: int) -> dict[str, Any]:
    if name in WITH_AUXILIARY_HEADS:
        return WITHOUT_AUXILIARY_HEADS
    if name.startswith("vit_"):
        return {"image_size": size}  # the number of position embeddings depends on it
    if name.startswith("maxvit"):
        return {"input_size": (size, size)}
    return {}
