"""`torchvision:NAME`: any of torchvision's classifiers (https://docs.pytorch.org/vision/stable/models.html), cut before
its last linear layer: what comes before is the body, the layer itself the head.
"""

import difflib
from typing import Any

import torch
from torch import Tensor, nn

import training.torchvision_shim  # noqa: F401  (makes the import of torchvision work beside a CPU-only torch)

# isort: split
from torchvision import models

from training.errors import RecipeError
from training.networks.branch import Classifier

PREFIX = "torchvision:"
# In training mode these return the logits of extra heads too; a branch needs a network with one head.
WITHOUT_AUXILIARY_HEADS: dict[str, Any] = {"aux_logits": False, "init_weights": True}


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
        path, head = _last_linear(model, name, classes, torch.zeros(1, 3, size, size))
    except (RuntimeError, AssertionError, ValueError) as problem:
        raise RecipeError(
            f"network '{PREFIX}{name}' cannot take images of {size}×{size} pixels: {problem}"
        ) from problem
    model.set_submodule(path, nn.Identity())
    return Classifier(model, head, feature_width=head.in_features)


def _options(name: str, size: int) -> dict[str, Any]:
    if name in ("googlenet", "inception_v3"):
        return WITHOUT_AUXILIARY_HEADS
    if name.startswith("vit_"):
        return {"image_size": size}  # the number of position embeddings depends on it
    if name.startswith("maxvit"):
        return {"input_size": (size, size)}
    return {}


@torch.no_grad()
def _last_linear(model: nn.Module, name: str, classes: int, image: Tensor) -> tuple[str, nn.Linear]:
    """The linear layer whose output is what the model returns, found by watching one forward pass."""
    outputs: dict[str, Tensor] = {}
    layers = {path: layer for path, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    hooks = [
        layer.register_forward_hook(lambda _layer, _inputs, output, path=path: outputs.update({path: output}))
        for path, layer in layers.items()
    ]
    result = model.eval()(image)
    for hook in hooks:
        hook.remove()
    model.train()
    for path, output in outputs.items():
        if output is result and output.shape == (1, classes):
            return path, layers[path]
    raise RecipeError(
        f"network '{PREFIX}{name}' cannot be cut into a body and a linear head: its last layer is not a linear one, so "
        f"there is no penultimate layer to add the confidence branch to. Choose another, for example {PREFIX}resnet18."
    )
