"""A recipe describes a training run completely: a TOML file under training/recipes, or any file of that form.

`extends = "other-recipe"` at the top of a file starts from another recipe (one that ships, or a file beside this one);
its own fields replace those of the same name. `--set section.field=value` changes a field; an unknown field or an
invalid value is rejected by name. `--set section.field=none` unsets a field: it takes its default.

A recipe for photos of any number may say `auto` where `training.learning.automatic` knows a value; a loaded recipe has
numbers only.
"""

import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from service.model.contract import USUAL_MARGIN, DecodeMargin
from training.errors import RecipeError

FOLDER = Path(__file__).parent / "recipes"


class Section(BaseModel):
    """A part of a recipe: immutable, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _number_or_fraction(share: int | float) -> int | float:
    if (isinstance(share, int) and share >= 1) or 0 < share < 1:
        return share
    raise ValueError("expected a number of images from 1, or a fraction between 0 and 1")


Share = Annotated[int | float, AfterValidator(_number_or_fraction)]
Channels = tuple[float, float, float]  # red, green, blue


class Data(Section):
    """Which images, how they are divided, and how an image of any size becomes the network's input."""

    dataset: str
    folder: str | None = None  # your own images in class sub-folders; None for a named set
    validation: Share = 1_000
    calibration: Share = 5_000
    test: Share | None = None  # only for a set that has no test part of its own
    split_seed: int = Field(0, ge=0)
    limit: PositiveInt | None = None
    size: int | None = Field(None, ge=1, le=4096)  # None: the size a named set has
    resize: Literal["stretch", "fit_crop"] = "stretch"
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bicubic"
    crop_fraction: float = Field(1.0, gt=0, le=1)  # only for fit_crop: see service.model.bundle.Input
    decode_margin: DecodeMargin = USUAL_MARGIN  # of JPEG files, at a reduced scale: likewise
    # "weights": as network.weights expect, which also fill mean, std, size and crop (`training.networks.weights`).
    normalisation: Literal["measured", "imagenet", "weights"] = "measured"
    mean: Channels | None = None
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.folder is not None and self.size is None:
            raise ValueError("images of a folder may have any size: data.size (--size) must say the network's")
        if self.resize == "stretch" and self.crop_fraction != 1:
            raise ValueError("data.crop_fraction is only for data.resize=fit_crop")
        given = (self.mean is not None, self.std is not None)
        if self.normalisation == "weights" and not all(given):
            raise ValueError(
                "data.normalisation=weights, but nothing says what the weights expect: set network.weights, or "
                "data.mean and data.std (three numbers each, for pixels of 0 to 1)"
            )
        if self.normalisation != "weights" and any(given):
            raise ValueError("data.mean and data.std are only for data.normalisation=weights")
        return self


class Network(Section):
    """See `training.networks`."""

    name: str
    widths: tuple[PositiveInt, ...] | None = None
    weights: str | None = None  # of the body, before training: "pretrained", a tag or a file; None: random


class Augmentation(Section):
    """See `training.learning.augmentation`. `smallest_area` > 0 resizes crops of at least that share (folders only)."""

    crop_padding: int = Field(4, ge=0)
    padding_mode: Literal["constant", "reflect"] = "constant"
    flip: Literal["none", "random", "alternate"] = "random"
    cutout_size: int = Field(16, ge=0)
    cutout_share: float = Field(1.0, ge=0, le=1)
    smallest_area: float = Field(0.0, ge=0, le=1)
    # So many operations of RandAugment (arXiv:1909.13719), of this strength of 30, for each image (folders only).
    random_operations: int = Field(0, ge=0, le=8)
    random_strength: int = Field(9, ge=0, le=30)
    # α of the Beta distribution of the shares in which two images are mixed: `training.learning.augmentation.mix`.
    mixup: float = Field(0.0, ge=0, le=10)
    cutmix: float = Field(0.0, ge=0, le=10)
    # The first `early_share` of training sees images whose sides are scaled by `early_scale`.
    early_scale: float = Field(1.0, ge=0.5, le=1)
    early_share: float = Field(0.0, ge=0, le=1)


class Confidence(Section):
    """The confidence branch, its loss and its budget: see `training.learning.loss`."""

    enabled: bool = True
    branch_hidden: tuple[PositiveInt, ...] = ()
    branch_activation: Literal["relu", "gelu"] = "relu"
    # "layers": besides the penultimate features also the mean of each channel of the layers before them.
    branch_reads: Literal["features", "layers"] = "features"
    budget: PositiveFloat = 0.3
    hint_probability: float = Field(0.5, ge=0, le=1)
    hints_for: Literal["network", "branch"] = "network"  # whose loss a hint lowers; see `confidence_loss`
    shapes_features: bool = True  # false: gradients of the branch stop at the features
    initial_weight: PositiveFloat = 0.1
    rule: Literal["proportional", "sign"] = "proportional"
    speed: PositiveFloat = 20.0
    relative_step: float = Field(0.01, gt=0, lt=1)
    # The number of hard images (`hard_images`) for each image of a batch; only for a branch that is trained alone.
    hard_share: float = Field(0.0, ge=0, le=1)


class Schedule(Section):
    """`triangle`: from start×lr up to lr at `peak_at` of training, down to end×lr; `cosine`: the same way up, then down
    along half a cosine; `steps`: ×factor at milestones.
    """

    kind: Literal["triangle", "cosine", "steps"]
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
        left = (1 - progress) / (1 - self.peak_at)
        if self.kind == "cosine":
            left = (1 - math.cos(math.pi * left)) / 2
        return self.end + (1 - self.end) * left


class Optimiser(Section):
    """How the weights are trained: see `training.learning.optimiser`."""

    # "branch": the classifier keeps the weights of --init. "head": the body keeps its pretrained weights, and the head
    # is fitted to its features as `training.learning.head.fit` says; of this section only `balance` counts then.
    trains: Literal["network", "branch", "head"] = "network"
    kind: Literal["sgd", "adamw"] = "sgd"
    epochs: PositiveInt
    batch_size: PositiveInt
    learning_rate: PositiveFloat
    momentum: float = Field(0.9, ge=0, lt=1)  # of adamw: its first beta
    weight_decay: float = Field(5e-4, ge=0)
    decay_offsets: bool = False  # whether weight decay also shrinks biases and batch-norm parameters
    offset_rate_scale: PositiveFloat = 1.0  # learning rate of the offsets (biases) relative to that of the weights
    # Each stage of the body learns at this fraction of the rate of the stage after it, the last at this of the head's.
    layer_decay: float = Field(1.0, gt=0, le=1)
    # "weights": an image counts more in the loss the rarer its class; "sampler": each class is shown equally often.
    balance: Literal["none", "weights", "sampler"] = "none"
    label_smoothing: float = Field(0.0, ge=0, lt=1)  # the share of each label that goes to all classes alike
    filter_rate: float = Field(0.0, ge=0)  # of orthogonal steps for the body's filters (Muon); 0: they take SGD's steps
    average_decay: float = Field(0.0, ge=0, lt=1)  # exponential moving average of the weights, 0 for none
    # Serve weights between those of the start and those of the end, as `training.learning.blend` chooses them.
    blend: bool = False
    schedule: Schedule

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.kind == "adamw" and self.filter_rate > 0:
            raise ValueError("optimiser.filter_rate is for optimiser.kind=sgd")
        return self


class Recipe(Section):
    """One training run."""

    name: str
    data: Data
    network: Network
    augment: Augmentation
    confidence: Confidence
    optimiser: Optimiser

    @model_validator(mode="after")
    def _trains_something(self) -> Self:
        alone = self.optimiser.trains == "branch"
        if alone and not self.confidence.enabled:
            raise ValueError("optimiser.trains=branch, but confidence.enabled=false leaves no branch to train")
        if self.confidence.enabled and self.optimiser.trains == "head":
            raise ValueError(
                "optimiser.trains=head fits the class head alone, but confidence.enabled=true asks for a branch too: "
                "set confidence.enabled=false"
            )
        several = self.optimiser.label_smoothing, self.augment.mixup, self.augment.cutmix
        if self.confidence.enabled and any(several):
            raise ValueError(
                "optimiser.label_smoothing, augment.mixup and augment.cutmix are for confidence.enabled=false: a hint "
                "gives away one whole label"
            )
        if self.confidence.hard_share > 0 and not alone:
            raise ValueError(
                "confidence.hard_share is for optimiser.trains=branch: a classifier must not learn from these images"
            )
        if alone and self.augment.early_share > 0:
            raise ValueError("optimiser.trains=branch: the classifier is trained, so augment.early_share must be 0")
        return self


def available() -> list[str]:
    """The recipes that ship with confgate."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def summary_of(name: str) -> str:
    """What a recipe that ships is for: the first line of its file."""
    first, *_ = (FOLDER / f"{name}.toml").read_text().splitlines()
    return first.removeprefix("#").strip()


def load_recipe(
    name_or_file: str,
    changes: list[str] | None = None,
    data: dict[str, Any] | None = None,
    network: dict[str, Any] | None = None,
    complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda fields: fields,
) -> Recipe:
    """A recipe by name or by path. `data` and `network` update their sections; then the `section.field=value` changes
    are applied, and `complete` adds what follows from all of them.
    """
    path = _find(name_or_file, Path())
    fields: dict[str, Any] = {"name": path.stem} | _read(path)
    fields["data"] = fields.get("data", {}) | (data or {})
    fields["network"] = fields.get("network", {}) | (network or {})
    for change in changes or []:
        _apply(fields, change)
    return parse_recipe(complete(fields))


def data_fields(name_or_file: str) -> dict[str, Any]:
    """What a recipe says of its data itself, without the defaults."""
    return dict(_read(_find(name_or_file, Path())).get("data", {}))


def _find(name_or_file: str, folder: Path) -> Path:
    """A recipe that ships with confgate, or a file whose path is relative to the folder."""
    for path in (FOLDER / f"{name_or_file}.toml", folder / name_or_file):
        if path.is_file():
            return path
    raise RecipeError(
        f"no recipe '{name_or_file}'. Expected one of {', '.join(available())}, or the path of a .toml file."
    )


def _read(path: Path, extended_by: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The fields of a file, on top of those of the recipe it extends."""
    chain = (*extended_by, path.resolve())
    if path.resolve() in extended_by:
        raise RecipeError(f"recipes extend each other in a circle: {' → '.join(link.name for link in chain)}.")
    try:
        fields = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as problem:
        raise RecipeError(f"{path} is not valid TOML: {problem}.") from problem
    extended = fields.pop("extends", None)
    if extended is None:
        return fields
    if not isinstance(extended, str):
        raise RecipeError(f"{path}: extends is {extended!r}, expected the name of one recipe.")
    return _merged(_read(_find(extended, path.parent), chain), fields)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Section by section, field by field; a field of `above` wins."""
    merged = below | above
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            merged[key] = _merged(below[key], above[key])
    return merged


def parse_recipe(fields: dict[str, Any]) -> Recipe:
    """A recipe from its fields; the error names every field that is wrong."""
    try:
        return Recipe.model_validate(fields)
    except ValidationError as problem:
        lines = [
            f"{'.'.join(str(part) for part in error['loc'])}{_shown(error['input'])}: "
            f"{error['msg'].removeprefix('Value error, ').lower()}"
            for error in problem.errors()
        ]
        raise RecipeError(f"recipe '{fields.get('name')}' cannot be used: {'; '.join(lines)}.") from problem


def _shown(value: Any) -> str:
    """The rejected value; a whole section would hide the message."""
    return "" if isinstance(value, dict) else f" = {value!r}"


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
    if value == "none" and not _is_choice("none", [*sections, field]):
        fields.pop(field, None)
    else:
        fields[field] = value


def _is_choice(word: str, path: list[str]) -> bool:
    """Whether the field of this path may have the word itself as its value, such as augment.flip=none."""
    kind: Any = Recipe
    for name in path:
        known = kind.model_fields.get(name) if isinstance(kind, type) and issubclass(kind, BaseModel) else None
        if known is None:
            return False
        kind = known.annotation
    return word in get_args(kind)
