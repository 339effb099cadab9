"""A recipe says everything a training run does: one TOML file under training/recipes, or any file of that form.

`--set section.field=value` changes a field; an unknown name or an impossible value is refused by name.
"""

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from training.augment import Augmentation, Flip
from training.errors import RecipeError

FOLDER = Path(__file__).parent / "recipes"


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Data(Section):
    dataset: str
    validation: PositiveInt = 1_000
    calibration: PositiveInt = 5_000
    split_seed: int = 0
    limit: PositiveInt | None = None


class Network(Section):
    name: str
    widths: tuple[PositiveInt, ...] | None = None


class Augment(Section):
    crop_padding: int = Field(4, ge=0)
    padding_mode: Literal["constant", "reflect"] = "constant"
    flip: Flip = "random"
    cutout_size: int = Field(16, ge=0)
    cutout_share: float = Field(1.0, ge=0, le=1)

    def augmentation(self) -> Augmentation:
        return Augmentation(**self.model_dump())


class Confidence(Section):
    enabled: bool = True
    branch_hidden: tuple[PositiveInt, ...] = ()
    budget: PositiveFloat = 0.3
    hint_probability: float = Field(0.5, ge=0, le=1)
    initial_weight: PositiveFloat = 0.1
    rule: Literal["proportional", "sign"] = "proportional"
    speed: PositiveFloat = 20.0
    relative_step: float = Field(0.01, gt=0, lt=1)


class Schedule(Section):
    """`triangle`: from start×lr up to lr at `peak_at` of training, down to end×lr; `steps`: ×factor at milestones."""

    kind: Literal["triangle", "steps"]
    start: float = Field(0.2, ge=0)
    peak_at: float = Field(0.25, gt=0, lt=1)
    end: float = Field(0.0, ge=0)
    milestones: tuple[PositiveInt, ...] = ()
    factor: PositiveFloat = 0.1

    def multiplier(self, progress: float, epoch: int) -> float:
        """What the learning rate is multiplied by at this fraction of training."""
        if self.kind == "steps":
            return self.factor ** sum(epoch >= milestone for milestone in self.milestones)
        if progress < self.peak_at:
            return self.start + (1 - self.start) * progress / self.peak_at
        return self.end + (1 - self.end) * (1 - progress) / (1 - self.peak_at)


class Optimiser(Section):
    epochs: PositiveInt
    batch_size: PositiveInt
    learning_rate: PositiveFloat
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-4, ge=0)
    offset_rate_scale: PositiveFloat = 1.0  # learning rate of the offsets (biases) relative to that of the weights
    average_decay: float = Field(0.0, ge=0, lt=1)  # exponential moving average of the weights, 0 for none
    schedule: Schedule


class Recipe(Section):
    name: str
    data: Data
    network: Network
    augment: Augment
    confidence: Confidence
    optimiser: Optimiser


def available() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_recipe(name_or_file: str, changes: list[str] | None = None) -> Recipe:
    """A recipe by name or by path, with `section.field=value` changes applied."""
    path = FOLDER / f"{name_or_file}.toml"
    if not path.is_file():
        path = Path(name_or_file)
    if not path.is_file():
        raise RecipeError(
            f"no recipe '{name_or_file}'. Expected one of {', '.join(available())}, or the path of a .toml file."
        )
    try:
        fields: dict[str, Any] = {"name": path.stem} | tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as problem:
        raise RecipeError(f"{path} is not valid TOML: {problem}.") from problem
    for change in changes or []:
        _apply(fields, change)
    return parse_recipe(fields)


def parse_recipe(fields: dict[str, Any]) -> Recipe:
    try:
        return Recipe.model_validate(fields)
    except ValidationError as problem:
        lines = [
            f"{'.'.join(str(part) for part in error['loc'])} = {error['input']!r}: {error['msg'].lower()}"
            for error in problem.errors()
        ]
        raise RecipeError(f"recipe '{fields.get('name')}' cannot be used: {'; '.join(lines)}.") from problem


def _apply(fields: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals:
        raise RecipeError(f"--set {change}: expected section.field=value, for example optimiser.epochs=2.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string: --set data.dataset=svhn
    *sections, field = key.strip().split(".")
    for section in sections:
        fields = fields.setdefault(section, {})
        if not isinstance(fields, dict):
            raise RecipeError(f"--set {change}: '{section}' is a value, not a section.")
    fields[field] = value
