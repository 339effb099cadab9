"""Where the layers of an exported graph are in the torch network: so that a branch can be trained along with it.

`layers` finds them in the graph, and here each is looked for among what the modules of the network take and give: the
tensor with the same channel means, for images and weights drawn at random.
"""

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from training.errors import RecipeError
from training.graphs.from_torch import export_network
from training.graphs.layers import BRANCH_INPUT, with_branch_input
from training.graphs.run import open_graph
from training.networks import Classifier, add_confidence_branch
from training.networks.layer_means import ShownLayer, channel_means
from training.recipe import Confidence

IMAGES = 6
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
LARGEST_DIFFERENCE = 0.02  # of the means of one layer, relative to their spread; another layer differs by far more


def add_branch_of(network: Classifier, confidence: Confidence, size: int) -> Classifier:
    """The branch that a recipe asks for, with random weights from torch's global generator; `network` has none yet."""
    if not confidence.enabled:
        return network
    layers = shown_layers(network, size) if confidence.branch_reads == "layers" else ()
    return add_confidence_branch(network, confidence.branch_hidden, confidence.branch_activation, layers)


def shown_layers(network: Classifier, size: int) -> tuple[ShownLayer, ...]:
    """The layers that `with_branch_input` reads of the exported network, in its order."""
    with torch.random.fork_rng(devices=[]):  # the weights of the branch must not depend on what is drawn here
        torch.manual_seed(0)
        network = _with_other_weights(network)
        images = torch.randint(0, 256, (IMAGES, size, size, 3), dtype=torch.uint8)
    shown, widths = with_branch_input(export_network(network, MEAN, STD, size))
    (read,) = open_graph(shown).run([BRANCH_INPUT], {"image": images.numpy()})
    candidates = _candidates(network.body, images)
    layers = []
    for means in np.split(read, np.cumsum(widths)[:-1], axis=1)[1:]:
        layer = _nearest(means, candidates)
        if layer is None:
            raise RecipeError(
                "confidence.branch_reads=layers: a layer of this network's graph is neither the input nor the output "
                "of a torch module. Train it without a branch (--set confidence.enabled=false), and give the finished "
                "run one: confgate-train learn-confidence RUN --out models/NAME/VERSION."
            )
        layers.append(layer)
    return tuple(layers)


def _with_other_weights(network: Classifier) -> Classifier:
    """A copy in which no block passes its input on unchanged, as those do whose scale is zero before training."""
    network = copy.deepcopy(network).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            spread = parameter.std().item() if parameter.numel() > 1 else 0.0
            parameter.add_((spread if parameter.ndim > 1 and spread else 0.2) * torch.randn_like(parameter))
    return network


Candidates = dict[ShownLayer, NDArray[np.float32]]


@torch.no_grad()
def _candidates(body: nn.Module, images: Tensor) -> Candidates:
    """The means of everything that could be a layer."""
    candidates: Candidates = {}
    calls: dict[tuple[str, bool], int] = {}

    def note(module: str, is_input: bool, value: Any) -> None:
        call = calls.get((module, is_input), 0)
        calls[module, is_input] = call + 1
        if not isinstance(value, Tensor) or value.ndim < 3 or not value.is_floating_point():
            return
        for channels_last in (False, True):
            layer = ShownLayer(module, call, is_input, value.shape[-1 if channels_last else 1], channels_last)
            candidates[layer] = channel_means(value, channels_last).float().numpy()

    hooks = []
    for name, module in body.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda _, x, name=name: note(name, True, x[0] if x else None)))
        hooks.append(module.register_forward_hook(lambda _, _x, y, name=name: note(name, False, y)))
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    body((images.float() / 255).sub(mean).div(std).permute(0, 3, 1, 2))
    for hook in hooks:
        hook.remove()
    return candidates


def _nearest(means: NDArray[np.float32], candidates: Candidates) -> ShownLayer | None:
    like = {layer: found for layer, found in candidates.items() if found.shape == means.shape}
    differences = {layer: float(np.abs(found - means).max()) for layer, found in like.items()}
    best = min(differences, key=lambda layer: differences[layer], default=None)
    if best is None or differences[best] > LARGEST_DIFFERENCE * max(float(means.std()), 1e-6):
        return None
    return best
