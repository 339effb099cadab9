"""What each of the paper's tables consists of: networks, data, sets and trainings; at its scale, or with `compact`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from training.data.catalogue import how_to_get
from training.data.noise import NOISE
from training.data.ood import all_images_parts
from training.errors import DataError, RecipeError
from training.evaluation.ood_sets import ALL, present_or_stand_in
from training.paper.published import published_rows
from training.recipe import Recipe, load_recipe

Scale = Literal["paper", "compact"]
Variant = Literal["text", "code"]  # recipes as the paper's text has them, or as its authors' code has them

BUDGETS = tuple(round(0.1 * step, 1) for step in range(1, 11))
BUDGET_SWEEP = "budget"
EXPERIMENTS = {
    "1": "baseline and confidence on SVHN and CIFAR-10, four sets",
    "2": "ODIN and confidence with input preprocessing, All Images",
    "3": "thresholds calibrated on out-of-distribution or on misclassified images, CIFAR-10",
    "4": "baseline and confidence on SVHN, every set",
    "5": "baseline and confidence on CIFAR-10, every set",
    BUDGET_SWEEP: "β from 0.1 to 1.0 on CIFAR-10, All Images: its effect on detection and on the best δ",
}
# The paper does not say which network it varied β with; VGG13 is the one that trains fastest.
BUDGET_NETWORK = "vgg13"
# The published network that compact's figures are shown beside: also without skip connections.
COMPACT_BESIDE = "vgg13"


@dataclass(frozen=True)
class Training:
    """One network to train and export; `name` is that of its folders."""

    recipe: str
    seed: int
    changes: tuple[str, ...] = ()
    label: str = ""  # distinguishes it from another training of the same recipe

    @property
    def name(self) -> str:
        return f"{self.recipe}{self.label}-seed{self.seed}"

    def load(self) -> Recipe:
        return load_recipe(self.recipe, list(self.changes))


@dataclass(frozen=True)
class Cell:
    """One network on one set, over all seeds: a block of rows of the table."""

    network: str  # by its published name; for compact, the one it is compared with
    in_distribution: str
    branch: tuple[Training, ...]
    baseline: tuple[Training, ...]
    budget: float | None = None


@dataclass(frozen=True)
class Experiment:
    """All trainings and OOD sets of one table."""

    table: str
    scale: Scale
    cells: tuple[Cell, ...]
    sets: tuple[str, ...]  # as published; `present_or_stand_in` says what they are here

    @property
    def trainings(self) -> tuple[Training, ...]:
        found = (t for cell in self.cells for t in (*cell.branch, *cell.baseline))
        return tuple(dict.fromkeys(found))


def plan_experiment(
    table: str, seeds: int, scale: Scale = "paper", variant: Variant = "text", changes: tuple[str, ...] = ()
) -> Experiment:
    """All cells of a table; `changes` are made to every recipe, for small trials."""
    if table not in EXPERIMENTS:
        raise RecipeError(f"table '{table}' is unknown, expected one of {', '.join(EXPERIMENTS)}.")
    if table == BUDGET_SWEEP:
        cells = tuple(_budget_cell(budget, seeds, scale, variant, changes) for budget in BUDGETS)
        return Experiment(table, scale, cells, (ALL,))
    rows = published_rows(table)
    sets = tuple(dict.fromkeys(row.out_of_distribution for row in rows))
    pairs = dict.fromkeys((row.network, row.in_distribution) for row in rows)
    if scale == "compact":
        pairs = dict.fromkeys((COMPACT_BESIDE, in_distribution) for _, in_distribution in pairs)
    cells = tuple(_cell(network, in_distribution, seeds, scale, variant, changes) for network, in_distribution in pairs)
    return Experiment(table, scale, cells, sets)


def _cell(
    network: str, in_distribution: str, seeds: int, scale: Scale, variant: Variant, changes: tuple[str, ...]
) -> Cell:
    recipe = _recipe(network, in_distribution, scale, variant)
    return Cell(
        network,
        in_distribution,
        tuple(Training(recipe, seed, changes) for seed in range(seeds)),
        tuple(Training(f"{recipe}-baseline", seed, changes) for seed in range(seeds)),
    )


def _budget_cell(budget: float, seeds: int, scale: Scale, variant: Variant, changes: tuple[str, ...]) -> Cell:
    recipe = _recipe(BUDGET_NETWORK, "cifar10", scale, variant)
    usual = load_recipe(recipe, list(changes)).confidence.budget
    # The training with the recipe's own budget is shared with the other tables.
    own, label = ((), "") if budget == usual else ((f"confidence.budget={budget:g}",), f"-budget{budget:g}")
    trainings = tuple(Training(recipe, seed, (*changes, *own), label) for seed in range(seeds))
    return Cell(BUDGET_NETWORK, "cifar10", trainings, (), budget)


def _recipe(network: str, in_distribution: str, scale: Scale, variant: Variant) -> str:
    if scale == "compact":
        return f"compact-{in_distribution}"
    return f"{network}-{in_distribution}" + ("-published" if variant == "code" else "")


def sets_here(experiment: Experiment, root: Path) -> dict[str, str]:
    """The name each published set has here: its own, or that of its stand-in."""
    return {name: present_or_stand_in(name, root) for name in experiment.sets}


def check_data(experiment: Experiment, root: Path) -> None:
    """Checks, before days of training, that all data for the evaluation is present."""
    needed = {training.load().data.dataset for training in experiment.trainings}
    for name in sets_here(experiment, root).values():
        if name == ALL:
            needed |= set(all_images_parts(root))
        elif name not in NOISE:
            needed.add(name)
    missing = sorted(name for name in needed if not (root / f"{name}.npz").is_file())
    if missing:
        how = "; ".join(f"{name}: {how_to_get(name)}" for name in missing)
        raise DataError(f"{root} does not hold {', '.join(missing)}. To get them: {how}.")
