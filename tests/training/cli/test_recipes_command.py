"""`confgate-train recipes`, and fields that are unset."""

import pytest

from tests.training.command_line import in_this_process as confgate_train
from training.errors import RecipeError
from training.recipe import available, load_recipe


def test_every_recipe_has_one_line():
    """All that ship are listed by name, each with a line of its own that ends like one."""
    listed = [line for line in confgate_train("recipes").stdout.partition("\n\n")[0].splitlines() if line]
    assert [line.split()[0] for line in listed] == available()
    assert all(line.endswith(".") and len(line.split()) > 4 for line in listed)


def test_a_field_is_unset_by_none():
    """It takes its default; where none is a choice, it is that choice; what a recipe needs cannot be unset."""
    usual = load_recipe("compact-cifar10")
    recipe = load_recipe("compact-cifar10", ["network.widths=none", "augment.flip=none", "optimiser.momentum=none"])
    assert usual.network.widths == (64, 256, 256)
    assert (recipe.network.widths, recipe.augment.flip, recipe.optimiser.momentum) == (None, "none", 0.9)
    assert usual.optimiser.momentum != 0.9
    with pytest.raises(RecipeError, match=r"optimiser\.epochs: field required"):
        load_recipe("compact-cifar10", ["optimiser.epochs=none"])
    with pytest.raises(RecipeError, match=r"optimiser\.speed.*extra inputs"):
        load_recipe("compact-cifar10", ["optimiser.speed=3"])
