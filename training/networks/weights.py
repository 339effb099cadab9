"""`network.weights`: where the weights of a network's body come from, and what they expect of an image.

`pretrained` is what the network's library recommends, a tag is one of the weights it offers, and a file is a state dict
(.pth, .pt, .safetensors). The head is always fresh: it belongs to other classes. `--init` takes a head as well.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from training.errors import RecipeError
from training.networks import efficientnet_lite
from training.networks.branch import Classifier
from training.networks.expected import Expected
from training.networks.state_files import FILE_ENDINGS, read_state_file
from training.networks.state_names import match_names

PRETRAINED = "pretrained"
TORCHVISION, TIMM = "torchvision:", "timm:"
WITH_WEIGHTS = "efficientnet-lite0, torchvision:NAME and timm:NAME"


@dataclass(frozen=True)
class BodyWeights:
    """What was loaded into a network's body."""

    source: str
    sha256: str  # of the tensors and their names in the source
    tensors: int

    def describe(self) -> str:
        """One line for the terminal."""
        return f"weights '{self.source}': {self.tensors} tensors taken for the body; the head is fresh"


def weights_fields(text: str) -> dict[str, str]:
    """What `--weights` says, as fields of a recipe's network: a library's network with its weights, a tag or a file."""
    if text.startswith((TORCHVISION, TIMM)):
        return {"name": text, "weights": PRETRAINED}
    return {"weights": text}


def is_file(weights: str) -> bool:
    """Whether it names a file rather than weights that a library offers."""
    return weights.endswith(FILE_ENDINGS)


def expected_of(name: str, weights: str | None) -> Expected | None:
    """What these weights expect. A file is taken to expect what the network's recommended weights do; None: unknown."""
    tag = None if weights is None or weights == PRETRAINED or is_file(weights) else weights
    if name == efficientnet_lite.NAME:
        _only_pretrained(name, tag)
        return efficientnet_lite.EXPECTED
    if name.startswith(TORCHVISION):
        from training.networks.backbones import torchvision_expected  # importing torchvision takes seconds

        return torchvision_expected(name.removeprefix(TORCHVISION), tag)
    if name.startswith(TIMM):
        from training.networks.timm_backbones import timm_expected

        return timm_expected(name.removeprefix(TIMM), tag)
    if weights is not None and not is_file(weights):
        raise RecipeError(
            f"network.weights is '{weights}', but there are none for '{name}'. Those of {WITH_WEIGHTS} have pretrained "
            f"weights; for '{name}' give a file that ends in {', '.join(FILE_ENDINGS)}."
        )
    return None


def completed(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a recipe, its data section completed by what the network's weights expect of an image."""
    network, data = fields.get("network"), fields.get("data")
    if not isinstance(network, dict) or not isinstance(data, dict) or not isinstance(network.get("name"), str):
        return fields  # the check of the recipe says what is wrong
    weights = network.get("weights")
    if weights is None and data.get("normalisation") != "weights":
        return fields
    expected = expected_of(network["name"], weights)
    if expected is None:
        return fields
    found: dict[str, Any] = {"interpolation": expected.interpolation, "normalisation": "weights"}
    if data.get("folder") is not None:
        found |= {"size": expected.size, "resize": "fit_crop"}
    filled = found | {field: value for field, value in data.items() if value is not None}
    if filled.get("resize") == "fit_crop":
        filled.setdefault("crop_fraction", expected.crop_fraction)
    if filled["normalisation"] == "weights":
        filled = {"mean": expected.mean, "std": expected.std} | filled
    return fields | {"data": filled}


def read_weights(name: str, weights: str) -> dict[str, Tensor]:
    """The tensors by name, as their source has them."""
    expected_of(name, weights)  # fails by name for weights that do not exist
    if is_file(weights):
        return read_state_file(Path(weights), "network.weights")
    if name == efficientnet_lite.NAME:
        return read_state_file(efficientnet_lite.packaged_file(), "network.weights")
    if name.startswith(TORCHVISION):
        from training.networks.backbones import torchvision_state

        return torchvision_state(name.removeprefix(TORCHVISION), None if weights == PRETRAINED else weights)
    from training.networks.timm_backbones import timm_state

    return timm_state(name.removeprefix(TIMM), None if weights == PRETRAINED else weights)


def load_weights(network: Classifier, name: str, weights: str) -> BodyWeights:
    """Copies the body's weights. Fails unless every one of them is there: a body that is half random is of no use."""
    state = read_weights(name, weights)
    match = match_names(network, state)
    ours = network.state_dict()
    taken = {
        own: state[theirs]
        for own, theirs in match.items()
        if own.startswith("body.") and state[theirs].shape == ours[own].shape
    }
    needed = [own for own in ours if own.startswith("body.") and not own.endswith("num_batches_tracked")]
    if missing := [own for own in needed if own not in taken]:
        first = missing[0]
        theirs = match.get(first)
        said = "not in it" if theirs is None else f"{list(ours[first].shape)} here, {list(state[theirs].shape)} there"
        raise RecipeError(
            f"network.weights '{weights}' does not fit '{name}': {len(missing)} of {len(needed)} tensors are missing "
            f"or have another shape, first {first.removeprefix('body.')} ({said}). Give weights of this network, at "
            f"the size of images that they were made for."
        )
    network.load_state_dict(ours | taken)
    return BodyWeights(weights if weights != PRETRAINED else f"{weights} of {name}", _digest(state), len(taken))


def _digest(state: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()


def _only_pretrained(name: str, tag: str | None) -> None:
    if tag is not None:
        raise RecipeError(
            f"network.weights is '{tag}', but '{name}' has one set of weights, called '{PRETRAINED}'. Expected that, "
            f"or a file that ends in {', '.join(FILE_ENDINGS)}; for another network --weights torchvision:NAME or "
            f"timm:NAME."
        )
