"""Networks by name; each is a `Classifier`, to which `add_confidence_branch` adds the branch."""

import re
from collections.abc import Callable
from functools import partial

from training.errors import RecipeError
from training.networks.branch import Classifier, Output, add_confidence_branch
from training.networks.compact import compact, whiten
from training.networks.densenet import check_densenet_bc, densenet_bc
from training.networks.efficientnet_lite import efficientnet_lite0
from training.networks.mlp import mlp
from training.networks.vgg import vgg13
from training.networks.wideresnet import check_wide_resnet, wide_resnet

__all__ = [
    "NAMES",
    "Classifier",
    "Output",
    "add_confidence_branch",
    "build_network",
    "check_network",
    "compact",
    "mlp",
    "whiten",
]

NAMES = (
    "compact, vgg13, wrn-DEPTH-WIDTH, densenet-bc, densenet-bc-DEPTH-GROWTH, mlp, efficientnet-lite0, "
    "torchvision:NAME, timm:NAME"
)

Builder = Callable[[int, int], Classifier]  # from the number of classes and the side of the images


def build_network(name: str, classes: int, size: int, widths: tuple[int, ...] | None = None) -> Classifier:
    """The network a recipe names for images of size×size pixels, with random weights from torch's global generator."""
    return _builder(name, widths)(classes, size)


def check_network(name: str, widths: tuple[int, ...] | None = None) -> None:
    """Fails where `build_network` would fail for images of any size; call it before images are read."""
    _builder(name, widths)


def _builder(name: str, widths: tuple[int, ...] | None) -> Builder:
    if name == "compact":
        return compact if widths is None else partial(compact, widths=_three(widths))
    if name == "mlp":
        layers = {} if widths is None else {"hidden": widths}
        return lambda classes, size: mlp(3 * size * size, classes, **layers)
    builder = _builder_without_widths(name)
    if widths is not None:
        raise RecipeError(f"network.widths is {list(widths)}, but '{name}' takes none. Only compact and mlp do.")
    return builder


def _builder_without_widths(name: str) -> Builder:
    if name == "vgg13":
        return vgg13
    if name == "densenet-bc":
        return densenet_bc
    if found := re.fullmatch(r"densenet-bc-(\d+)-(\d+)", name):
        depth, growth = int(found[1]), int(found[2])
        check_densenet_bc(depth, growth)
        return partial(densenet_bc, depth=depth, growth=growth)
    if found := re.fullmatch(r"wrn-(\d+)-(\d+)", name):
        depth, widening = int(found[1]), int(found[2])
        check_wide_resnet(depth, widening)
        return partial(wide_resnet, depth, widening)
    if name == "efficientnet-lite0":
        return efficientnet_lite0
    if found := re.fullmatch(r"torchvision:(.+)", name):
        # Importing torchvision takes seconds, and most networks do not need it.
        from training.networks.backbones import check_torchvision_name, torchvision_classifier

        check_torchvision_name(found[1])
        return partial(torchvision_classifier, found[1])
    if found := re.fullmatch(r"timm:(.+)", name):
        from training.networks.timm_backbones import check_timm_name, timm_classifier

        check_timm_name(found[1])
        return partial(timm_classifier, found[1])
    raise RecipeError(f"network.name is '{name}', expected one of: {NAMES}.")


def _three(widths: tuple[int, ...]) -> tuple[int, int, int]:
    if len(widths) != 3:
        raise RecipeError(f"network.widths of 'compact' is {list(widths)}, expected three numbers.")
    return widths[0], widths[1], widths[2]
