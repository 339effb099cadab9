"""Recipes: every field can be set, and what cannot be is refused by name."""

import pytest

from training.errors import RecipeError
from training.recipe import load_recipe, parse_recipe


def test_changes_reach_every_section():
    """`--set section.field=value` takes numbers, words, lists and true/false, and leaves the rest alone."""
    changed = load_recipe(
        "compact-cifar10",
        [
            *("optimiser.epochs=2", "optimiser.schedule.kind=steps", "optimiser.schedule.milestones=[1]"),
            *("network.widths=[8, 16, 16]", "confidence.enabled=false", "data.dataset=svhn", "data.validation=0.1"),
        ],
    )
    plain = load_recipe("compact-cifar10")
    assert (changed.optimiser.epochs, changed.optimiser.schedule.kind) == (2, "steps")
    assert changed.optimiser.schedule.milestones == (1,)
    assert changed.network.widths == (8, 16, 16)
    assert (changed.confidence.enabled, changed.data.dataset, changed.data.validation) == (False, "svhn", 0.1)
    assert changed.augment == plain.augment
    assert changed.optimiser.learning_rate == plain.optimiser.learning_rate


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("optimiser.epoch=2", "optimiser.epoch = 2: extra inputs are not permitted"),
        ("optimizer.epochs=2", "optimizer: extra inputs are not permitted"),
        ("optimiser.epochs=0", "optimiser.epochs = 0: input should be greater than 0"),
        ("optimiser.epochs=many", "optimiser.epochs = 'many': "),
        ("augment.flip=sideways", "augment.flip = 'sideways': input should be 'none', 'random' or 'alternate'"),
        (
            "confidence.hint_probability=1.5",
            "confidence.hint_probability = 1.5: input should be less than or equal to 1",
        ),
        ("data.calibration=1.5", "data.calibration = 1.5: expected a number of images from 1, or a fraction"),
        ("data.folder=photos", "data: images of a folder may have any size: data.size (--size) must say"),
        ("data.crop_fraction=0.9", "data: data.crop_fraction is only for data.resize=fit_crop"),
        ("data.decode_margin=0.5", 'data.decode_margin = 0.5: expected a number from 1, or "full"'),
        ("data.decode_margin=none1", "data.decode_margin = 'none1': expected a number from 1"),
        ("optimiser.epochs", "expected section.field=value"),
        ("data.dataset.name=x", "'dataset' is a value, not a section"),
    ],
)
def test_unknown_and_impossible_values_are_refused_by_name(change, message):
    """The error names the field, shows the value and says what was expected."""
    with pytest.raises(RecipeError) as problem:
        load_recipe("compact-cifar10", [change])
    assert message in str(problem.value)


def test_an_unknown_recipe_lists_those_there_are(tmp_path):
    """A wrong name is answered with the right ones; a file that is not TOML with its path."""
    with pytest.raises(RecipeError, match=r"no recipe 'compact-cifar'.*compact-cifar10"):
        load_recipe("compact-cifar")
    (tmp_path / "mine.toml").write_text("data = ")
    with pytest.raises(RecipeError, match=r"mine\.toml is not valid TOML"):
        load_recipe(str(tmp_path / "mine.toml"))


def test_recipes_of_earlier_runs_stay_readable():
    """A recorded recipe without the fields that were added since is completed with their defaults."""
    fields = load_recipe("compact-cifar10").model_dump(mode="json")
    recent = ("folder", "test", "size", "resize", "interpolation", "crop_fraction", "decode_margin", "normalisation")
    fields["data"] = {key: value for key, value in fields["data"].items() if key not in recent}
    del fields["augment"]["smallest_area"]
    assert parse_recipe(fields) == load_recipe("compact-cifar10")
