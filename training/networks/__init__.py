"""Networks by name; each is a `Classifier`, to which `add_confidence_branch` adds the branch."""

from training.errors import RecipeError
from training.networks.branch import Classifier, Output, add_confidence_branch
from training.networks.compact import compact, whiten

__all__ = ["Classifier", "Output", "add_confidence_branch", "build_network", "compact", "whiten"]


def build_network(name: str, classes: int, size: int, widths: tuple[int, ...] | None = None) -> Classifier:
    """The network a recipe names, with fresh weights from torch's global generator."""
    if name == "compact":
        if widths is None:
            return compact(classes, size)
        if len(widths) != 3:
            raise RecipeError(f"network.widths of 'compact' is {list(widths)}, expected three numbers.")
        return compact(classes, size, (widths[0], widths[1], widths[2]))
    raise RecipeError(f"network.name is '{name}', expected one of: compact.")
