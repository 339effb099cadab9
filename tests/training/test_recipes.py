"""The recipes that ship: the paper's trainings as its text has them, as its authors' code has them, and `compact`."""

import pytest

from training.errors import RecipeError
from training.recipe import FOLDER, available, load_recipe

# Section 4.2.3 of arXiv:1802.04865: what each network is trained with, on both data sets.
AS_WIDE_RESNET = {"epochs": 200, "batch_size": 128, "weight_decay": 5e-4, "milestones": (60, 120, 160), "factor": 1 / 5}
AS_DENSENET = {"epochs": 300, "batch_size": 64, "weight_decay": 1e-4, "milestones": (150, 225), "factor": 1 / 10}
PAPER = {
    "vgg13-cifar10": ("vgg13", "cifar10", AS_WIDE_RESNET),
    "wrn-28-10-cifar10": ("wrn-28-10", "cifar10", AS_WIDE_RESNET),
    "densenet-bc-cifar10": ("densenet-bc", "cifar10", AS_DENSENET),
    "vgg13-svhn": ("vgg13", "svhn", AS_WIDE_RESNET),
    "wrn-16-8-svhn": ("wrn-16-8", "svhn", AS_WIDE_RESNET),
    "densenet-bc-svhn": ("densenet-bc", "svhn", AS_DENSENET),
}
# README.md and train.py of github.com/uoguelph-mlrg/confidence_estimation, where they differ from the text.
SVHN_FOR_160_EPOCHS = {"learning_rate": 0.01, "epochs": 160, "milestones": (80, 120), "factor": 1 / 10}
AUTHORS_CODE = {
    "vgg13-cifar10": {},
    "wrn-28-10-cifar10": {},
    "densenet-bc-cifar10": {},
    "vgg13-svhn": SVHN_FOR_160_EPOCHS,
    "wrn-16-8-svhn": SVHN_FOR_160_EPOCHS,
    "densenet-bc-svhn": {"learning_rate": 0.01},
}
COMPACT = {"compact-cifar10": "cifar10", "compact-svhn": "svhn", "compact-fashion-mnist": "fashion_mnist"}
WITH_BRANCH = [*PAPER, *(f"{name}-published" for name in PAPER), *COMPACT]


def optimisation(recipe):
    """The fields of the optimiser and its schedule that the paper has values for."""
    optimiser, schedule = recipe.optimiser, recipe.optimiser.schedule
    assert schedule.kind == "steps"
    return {
        "learning_rate": optimiser.learning_rate,
        "momentum": optimiser.momentum,
        "epochs": optimiser.epochs,
        "batch_size": optimiser.batch_size,
        "weight_decay": optimiser.weight_decay,
        "milestones": schedule.milestones,
        "factor": schedule.factor,
    }


def test_exactly_the_promised_recipes_ship():
    """Six trainings of the paper, each also as published, three of compact, the baseline of every one, for compact the
    branch alone, and photos.
    """
    alone = [f"{name}-branch" for name in COMPACT]
    assert available() == sorted([*WITH_BRANCH, *(f"{name}-baseline" for name in WITH_BRANCH), *alone, "photos"])


@pytest.mark.parametrize("name", COMPACT)
def test_a_branch_alone_is_for_the_network_of_its_recipe(name):
    """NAME-branch trains on the same data with the same network and crops, and changes nothing but the branch."""
    recipe, alone = load_recipe(name), load_recipe(f"{name}-branch")
    assert (alone.data, alone.network) == (recipe.data, recipe.network)
    assert alone.augment == recipe.augment.model_copy(update={"early_scale": 1.0, "early_share": 0.0})
    assert alone.optimiser.trains == "branch"
    assert (recipe.confidence.budget, alone.confidence.budget) == (0.3, 0.1)


@pytest.mark.parametrize("name", PAPER)
def test_a_training_of_the_paper_is_what_its_text_says(name):
    """Network, data, optimiser, schedule, augmentation, budget and hints are those of section 4.2.3 and section 2.3."""
    network, dataset, expected = PAPER[name]
    recipe = load_recipe(name)
    assert (recipe.network.name, recipe.data.dataset) == (network, dataset)
    assert optimisation(recipe) == {"learning_rate": 0.1, "momentum": 0.9, **expected}
    assert recipe.confidence.enabled
    assert (recipe.confidence.budget, recipe.confidence.hint_probability) == (0.3, 0.5)
    # "Standard data augmentation (cropping and flipping) and Cutout", whose paper has 16 for CIFAR-10 and 20 for SVHN.
    augment = recipe.augment
    assert (augment.crop_padding, augment.padding_mode, augment.flip) == (4, "constant", "random")
    assert (augment.cutout_size, augment.cutout_share) == ({"cifar10": 16, "svhn": 20}[dataset], 1.0)


@pytest.mark.parametrize("name", PAPER)
def test_the_learning_rate_drops_after_the_epochs_the_paper_names(name):
    """Epoch 60 (of 200) still runs at the full rate, epoch 61 at a fifth; DenseNet's 150 and 151 at 1 and a tenth."""
    _, _, expected = PAPER[name]
    schedule = load_recipe(name).optimiser.schedule
    for drops, milestone in enumerate(expected["milestones"]):
        # Epochs count from 0 in the code: the 60th epoch is number 59.
        assert schedule.multiplier(0.5, milestone - 1) == pytest.approx(expected["factor"] ** drops)
        assert schedule.multiplier(0.5, milestone) == pytest.approx(expected["factor"] ** (drops + 1))


@pytest.mark.parametrize("name", PAPER)
def test_a_published_variant_is_what_the_authors_code_does(name):
    """It differs from the text in the listed values, in Cutout on half of the images, and on SVHN in no flips."""
    text, published = load_recipe(name), load_recipe(f"{name}-published")
    assert optimisation(published) == optimisation(text) | AUTHORS_CODE[name]
    on_svhn = published.data.dataset == "svhn"
    assert published.augment == text.augment.model_copy(
        update={"cutout_share": 0.5, "flip": "none" if on_svhn else "random"}
    )
    confidence = published.confidence
    assert (confidence.rule, confidence.relative_step, confidence.initial_weight) == ("sign", 0.01, 0.1)
    assert (confidence.branch_hidden, confidence.budget, confidence.hint_probability) == ((), 0.3, 0.5)
    assert (published.data, published.network) == (text.data, text.network)


@pytest.mark.parametrize(("name", "dataset"), COMPACT.items())
def test_compact_recipes_train_the_same_network_on_three_sets(name, dataset):
    """Each names its own data set and the compact network (half as wide for clothes); digits are not mirrored."""
    recipe = load_recipe(name)
    assert recipe.data.dataset == dataset
    assert recipe.network.name == "compact"
    assert recipe.network.widths == ((32, 128, 128) if dataset == "fashion_mnist" else (64, 256, 256))
    assert (recipe.augment.flip == "none") == (dataset == "svhn")


@pytest.mark.parametrize("name", WITH_BRANCH)
def test_a_baseline_differs_only_in_having_no_branch(name):
    """NAME-baseline is NAME with confidence.enabled = false, and has its own name."""
    recipe, baseline = load_recipe(name), load_recipe(f"{name}-baseline")
    without = recipe.confidence.model_copy(update={"enabled": False})
    assert baseline == recipe.model_copy(update={"name": f"{name}-baseline", "confidence": without})


def test_extends_replaces_only_the_fields_a_file_names(tmp_path):
    """A file beside the user's own takes over a shipped recipe, whole sections and single fields, through two steps."""
    (tmp_path / "mine.toml").write_text(
        'extends = "vgg13-svhn"\n[optimiser]\nepochs = 3\n[optimiser.schedule]\nmilestones = [2]\n'
    )
    (tmp_path / "mine-fast.toml").write_text('extends = "mine.toml"\n[optimiser]\nbatch_size = 8\n')
    recipe, base = load_recipe(str(tmp_path / "mine-fast.toml")), load_recipe("vgg13-svhn")
    schedule = base.optimiser.schedule.model_copy(update={"milestones": (2,)})
    optimiser = base.optimiser.model_copy(update={"epochs": 3, "batch_size": 8, "schedule": schedule})
    assert recipe == base.model_copy(update={"name": "mine-fast", "optimiser": optimiser})


def test_set_changes_a_field_of_the_recipe_that_is_extended():
    """`--set` comes last, after every file."""
    assert load_recipe("wrn-28-10-cifar10", ["optimiser.epochs=2"]).optimiser.epochs == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extends = "no-such-recipe"', "no recipe 'no-such-recipe'"),
        ('extends = "a.toml"', r"circle: a\.toml → a\.toml"),
        ('extends = ["vgg13-svhn"]', r"extends is \['vgg13-svhn'\], expected the name of one recipe"),
        ('extends = "vgg13-svhn"\n[optimiser]\nepocs = 3', "optimiser.epocs"),
        ('extends = "vgg13-svhn"\n[optimiser]\nepochs = 0', "optimiser.epochs = 0"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path, text, message):
    """A missing base, a circle, a base that is no name, an unknown field and an impossible value are named."""
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(RecipeError, match=message):
        load_recipe(str(tmp_path / "a.toml"))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_says_what_it_is(path):
    """A file begins with a comment: the first thing a reader of the folder wants to know."""
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert len(first) > 20
