"""Networks by name; each is a `Classifier`, to which `add_confidence_branch` adds the branch."""

import re

from training.errors import RecipeError
from training.networks.branch import Classifier, Output, add_confidence_branch
from training.networks.compact import compact, whiten
from training.networks.densenet import densenet_bc
from training.networks.mlp import mlp
from training.networks.vgg import vgg13
from training.networks.wideresnet import wide_resnet

__all__ = ["NAMES", "Classifier", "Output", "add_confidence_branch", "build_network", "compact", "mlp", "whiten"]

NAMES = "compact, vgg13, wrn-DEPTH-WIDTH, densenet-bc, densenet-bc-DEPTH-GROWTH, mlp, torchvision:NAME"


def build_network(name: str, classes: int, size: int, widths: tuple[int, ...] | None = None) -> Classifier:
    """The network a recipe names for images of size×size pixels, with fresh weights from torch's global generator."""
    if name == "compact":
        return compact(classes, size) if widths is None else compact(classes, size, _three(widths))
    if name == "mlp":
        return mlp(3 * size * size, classes) if widths is None else mlp(3 * size * size, classes, widths)
    if widths is not None:
        raise RecipeError(f"network.widths is {list(widths)}, but '{name}' takes none. Only compact and mlp do.")
    if name == "vgg13":
        return vgg13(classes, size)
    if name == "densenet-bc":
        return densenet_bc(classes, size)
    if found := re.fullmatch(r"densenet-bc-(\d+)-(\d+)", name):
        return densenet_bc(classes, size, depth=int(found[1]), growth=int(found[2]))
    if found := re.fullmatch(r"wrn-(\d+)-(\d+)", name):
        return wide_resnet(int(found[1]), int(found[2]), classes, size)
    if found := re.fullmatch(r"torchvision:(.+)", name):
        # Importing torchvision takes seconds, and most networks do not need it.
        from training.networks.torchvision_classifier import torchvision_classifier

        return torchvision_classifier(found[1], classes, size)
    raise RecipeError(f"network.name is '{name}', expected one of: {NAMES}.")


def _three(widths: tuple[int, ...]) -> tuple[int, int, int]:
    if len(widths) != 3:
        raise RecipeError(f"network.widths of 'compact' is {list(widths)}, expected three numbers.")
    return widths[0], widths[1], widths[2]
