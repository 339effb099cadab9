"""How a bundle was made, as bundle.json and its card hold it: the commands, and every field of the recipe."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.model.bundle import Manifest
from service.model.command_line import CommandLine, shown_path
from training.errors import RecipeError
from training.recipe import Recipe, parse_recipe

HEADING = "## How it was made\n"
INTRODUCTION = (
    "These commands make it again, pasted into a shell in the folder where they were typed; with another `--out` where "
    "the first is still there:"
)
BLOCK = re.compile(r"(?:^[^\n]*:\n\n)?^```sh\n.*?^```\n*", re.MULTILINE | re.DOTALL)


def chain(earlier: Sequence[str], command: CommandLine) -> tuple[str, ...]:
    """The commands that led here and the last one; one that did several steps is there once."""
    return tuple(dict.fromkeys((*earlier, command)))


def resolved(recipe: Recipe) -> dict[str, Any]:
    """Every field of a recipe that is set, after `--set`, `--data` and `--size`."""
    fields = recipe.model_dump(mode="json", exclude_none=True)
    if recipe.data.folder is not None:
        fields["data"]["folder"] = shown_path(recipe.data.folder)
    if recipe.network.weights is not None:
        fields["network"]["weights"] = shown_path(recipe.network.weights)
    return fields


def recipe_of(manifest: Manifest) -> Recipe | None:
    """The recipe that a bundle was trained with; None if it was not trained here, or does not hold its recipe yet."""
    fields = manifest.provenance.resolved_recipe
    if fields is None or "data" not in fields:
        return None
    recipe = parse_recipe(dict(fields))
    if recipe.data.folder is None:
        return recipe
    folder = str(Path(recipe.data.folder).expanduser())
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"folder": folder})})


def recipe_of_run(run: Path) -> Recipe:
    """The recipe that a run was trained with, including changes by `--set`."""
    record = run / "run.json"
    if not record.is_file():
        raise RecipeError(f"{run} holds no training run. Expected a folder written by 'confgate-train fit … --out'.")
    return parse_recipe(json.loads(record.read_text())["recipe"])


def how_it_was_made(commands: Sequence[str], facts: str) -> str:
    """The end of a card."""
    lines = "\n".join(commands)
    return f"{INTRODUCTION}\n\n```sh\n{lines}\n```\n\n{facts}"


def facts_of_card(folder: Path) -> str:
    """What the card of a bundle says about how it was made, without the commands that bundle.json has too."""
    card = folder / "CARD.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    return BLOCK.sub("", text.partition(HEADING)[2]).strip()
