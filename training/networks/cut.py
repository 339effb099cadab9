"""Cuts a classifier from a library before its last linear layer: what comes before is the body, the layer the head."""

import torch
from torch import Tensor, nn

from training.errors import RecipeError
from training.networks.branch import Classifier


def cut_before_head(model: nn.Module, name: str, classes: int, size: int) -> Classifier:
    """Body and head of a model that returns logits; the head keeps the name that its weights have in files."""
    path, head = _last_linear(model, name, classes, torch.zeros(1, 3, size, size))
    model.set_submodule(path, nn.Identity())
    return Classifier(model, head, feature_width=head.in_features, head_name=path)


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
    library = name.partition(":")[0]
    raise RecipeError(
        f"network '{name}' cannot be cut into a body and a linear head: its last layer is not a linear one, so there "
        f"is no penultimate layer to add the confidence branch to. Choose another, for example {library}:resnet18."
    )
