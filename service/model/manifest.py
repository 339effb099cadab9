"""bundle.json: everything inference must know, and nothing that it does not read.

schema_version 2 has pairs of thresholds (`pairs`) and the scores `neighbours` and `certainty`; version 1 has neither,
and is still read.
"""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy.typing as npt
from pydantic import AfterValidator, AwareDatetime, Field, JsonValue, PositiveInt, model_validator

from service.model.contract import USUAL_MARGIN, Contract, DecodeMargin, FileName, Name, PolicyName, Rate, Text
from service.model.pairs import Pairs
from service.model.references import Display, Histogram, Typicality
from service.model.scores import (
    PREPROCESSED_SCORES,
    RELATIVE_SCORES,
    Floats,
    Numbers,
    ScoreName,
    score_images,
    shown,
)

SCHEMA_VERSIONS = (1, 2)
# Scores that only schema_version 2 knows.
NEW_SCORES: frozenset[ScoreName] = frozenset({"neighbours", "certainty"})
PAIR_SCORES: tuple[ScoreName, ScoreName] = ("typicality", "certainty")  # what the two thresholds of a pair are on
MANIFEST = "bundle.json"

GraphName = Literal["forward", "perturbed"]


class HashedFile(Contract):
    file: FileName
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: PositiveInt

    @classmethod
    def of(cls, path: Path) -> Self:
        """Describes a file as it stands on disk now."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(file=path.name, sha256=digest, size=path.stat().st_size)


class Provenance(Contract):
    git_sha: Text
    recipe: Text
    seed: int | None = None
    data: Text
    # The command lines that made it, in their order: see `service.model.command_line`. Older bundles have none.
    commands: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    # Every field of the recipe, or every option of `import-onnx`, as it was used. Older bundles have none.
    resolved_recipe: dict[str, JsonValue] | None = None


class Input(Contract):
    """How any image becomes the graph's input: see `service.model.images.fit`."""

    width: Annotated[int, Field(ge=1, le=4096)]
    height: Annotated[int, Field(ge=1, le=4096)]
    resize: Literal["stretch", "fit_crop"]
    interpolation: Literal["nearest", "bilinear", "bicubic"]
    # fit_crop scales the image to size / crop_fraction before it cuts the middle out (ImageNet: 224 / 256).
    crop_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    # A JPEG is decoded at 1/2, 1/4 or 1/8 if its sides are then still so many times what resizing needs; "full": never.
    # Older bundles do not have it: they were calibrated, and are served, with this default.
    decode_margin: DecodeMargin = USUAL_MARGIN

    @model_validator(mode="after")
    def _stretch_cuts_nothing(self) -> Self:
        if self.resize == "stretch" and self.crop_fraction != 1:
            raise ValueError("crop_fraction is only for resize fit_crop; with stretch it must be 1")
        return self


class Policy(Contract):
    """A threshold on the score's unbounded scale, and what calibration expects of it."""

    threshold: float
    expected_rejection_rate: Rate
    # Where the rejection rate of images like the calibration images lies, with 95 % probability.
    expected_rejection_interval: tuple[Rate, Rate] | None = None
    detection_error: Rate | None = None
    n: PositiveInt
    how: Text

    @model_validator(mode="after")
    def _interval_holds_the_rate(self) -> Self:
        if self.expected_rejection_interval is not None:
            low, high = self.expected_rejection_interval
            if not low <= self.expected_rejection_rate <= high:
                raise ValueError("expected_rejection_interval must hold expected_rejection_rate")
        return self


class Score(Contract):
    # How far the perturbed graph moves the input, in normalised units; only for preprocessed scores.
    epsilon: Annotated[float, Field(ge=0)] | None = None
    # T under which the softmax is read: ODIN's for `odin`, the bundle's for `certainty`; only for these.
    temperature: Annotated[float, Field(gt=0)] | None = None
    # Only for scores without a natural zero: `energy`, `max_logit` and `neighbours`.
    display: Display | None = None
    # Only for `typicality`.
    typicality: Typicality | None = None
    reference: Histogram
    policies: Annotated[dict[PolicyName, Policy], Field(min_length=1)]

    def of_images(self, name: ScoreName, outputs: Numbers, known: Mapping[ScoreName, Floats] | None = None) -> Floats:
        """This score [N], unbounded, of a batch; `known` scores of the same batch are not read again."""
        reference = None if self.typicality is None else self.typicality.reference
        return score_images(name, outputs, self.temperature, reference, known)

    def shown(self, values: npt.ArrayLike) -> Floats:
        """Unbounded values of this score as people see them, between 0 and 1."""
        return shown(values) if self.display is None else shown(values, self.display.location, self.display.scale)

    def compared(self, threshold: float) -> float:
        """A threshold as people see it, on the unbounded scale on which it is compared: the inverse of `shown`."""
        log_odds = math.log(threshold) - math.log1p(-threshold)
        return log_odds if self.display is None else self.display.location + self.display.scale * log_odds


class Default(Contract):
    """What decides unless a request says otherwise: a policy of a score, or of `pairs` where no score is named."""

    score: ScoreName | None = None
    policy: PolicyName


class Figure(Contract):
    """One measured number: what, on which data, over how many images, and under which score and policy.

    A policy without a score is a pair.
    """

    metric: Text
    data: Text
    value: float
    n: PositiveInt
    score: ScoreName | None = None
    policy: PolicyName | None = None


def _distinct(labels: tuple[str, ...]) -> tuple[str, ...]:
    repeated = {label for label in labels if labels.count(label) > 1} if len(set(labels)) < len(labels) else ()
    if repeated:
        raise ValueError(f"labels must differ, but {sorted(repeated)} occur more than once")
    return labels


class Manifest(Contract):
    """bundle.json."""

    schema_version: Literal[1, 2] = 1
    name: Name
    version: PositiveInt
    created: AwareDatetime
    provenance: Provenance
    graphs: dict[GraphName, HashedFile]
    # Weights outside the .onnx files, which both graphs may share.
    external_data: tuple[HashedFile, ...] = ()
    # Hashes of the images that the network was trained on, 8 bytes each: calibration refuses such images.
    training_images: HashedFile | None = None
    input: Input
    # Most images in one run of a graph; 1 for a graph that cannot take several. Unset: as many as the service allows.
    max_batch: PositiveInt | None = None
    labels: Annotated[tuple[Text, ...], Field(min_length=2), AfterValidator(_distinct)]
    temperature: Annotated[float, Field(gt=0)]
    scores: Annotated[dict[ScoreName, Score], Field(min_length=1)]
    # Since schema_version 2: policies that ask two questions, each with its own threshold.
    pairs: Pairs | None = None
    default: Default
    evaluation: tuple[Figure, ...] = ()

    @property
    def refuses_nothing(self) -> bool:
        """Whether the default gate accepts every image: its calibration failed."""
        if self.pairs is None or self.default.score is not None:
            return False
        pair = self.pairs.policies[self.default.policy]
        return pair.familiarity is None and pair.certainty is None

    @property
    def preprocessed_score(self) -> ScoreName | None:
        """The one score that needs the perturbed graph, if there is one."""
        return next((score for score in self.scores if score in PREPROCESSED_SCORES), None)

    def batch_of(self, allowed: int) -> int:
        """Most images in one run of a graph, where `allowed` is what the service allows."""
        return allowed if self.max_batch is None else min(allowed, self.max_batch)

    @property
    def has_confidence(self) -> bool:
        """Whether the graphs carry a confidence branch, or the bundle is a plain classifier."""
        return "confidence" in self.scores

    @property
    def gated_score(self) -> ScoreName:
        """The score that the default policy compares; of a pair, that of familiarity."""
        return self.default.score or PAIR_SCORES[0]

    @property
    def files(self) -> tuple[HashedFile, ...]:
        remembered = () if self.training_images is None else (self.training_images,)
        return (*self.graphs.values(), *self.external_data, *remembered)

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if "forward" not in self.graphs:
            raise ValueError("graphs.forward is missing")
        preprocessed = [score for score in self.scores if score in PREPROCESSED_SCORES]
        if len(preprocessed) > 1:
            raise ValueError(f"scores {preprocessed} would need two perturbed graphs; only one can be held")
        if bool(preprocessed) != ("perturbed" in self.graphs):
            raise ValueError("a perturbed graph and a preprocessed score need each other")
        if "confidence_preprocessed" in self.scores and not self.has_confidence:
            raise ValueError("scores.confidence_preprocessed needs scores.confidence")
        if not self.has_confidence and "max_softmax" not in self.scores:
            raise ValueError("scores needs confidence, or max_softmax for a plain classifier")
        self._check_version()
        for name, score in self.scores.items():
            if (score.epsilon is not None) != (name in PREPROCESSED_SCORES):
                raise ValueError(f"scores.{name}.epsilon belongs to preprocessed scores, and only to those")
            if (score.temperature is not None) != (name in ("odin", "certainty")):
                raise ValueError(f"scores.{name}.temperature belongs to odin and certainty, and only to those")
            if (score.display is not None) != (name in RELATIVE_SCORES):
                raise ValueError(f"scores.{name}.display belongs to {sorted(RELATIVE_SCORES)}, and only to those")
            if (score.typicality is not None) != (name == "typicality"):
                raise ValueError(f"scores.{name}.typicality belongs to typicality, and only to it")
            unread = set(score.typicality.components) - set(self.scores) if score.typicality else set()
            if unread & {"confidence", "neighbours"}:
                raise ValueError(f"scores.typicality.typicality.components has {sorted(unread)}, which scores has not")
        for where, score_name, policy in (
            ("default", self.default.score, self.default.policy),
            *((f"evaluation[{i}]", figure.score, figure.policy) for i, figure in enumerate(self.evaluation)),
        ):
            if score_name is None and policy is not None and (self.pairs is None or policy not in self.pairs.policies):
                raise ValueError(f"{where}.policy {policy} names no score, and is not in pairs.policies")
            if score_name is not None and score_name not in self.scores:
                raise ValueError(f"{where}.score {score_name} is not in scores")
            if score_name is not None and policy is not None and policy not in self.scores[score_name].policies:
                raise ValueError(f"{where}.policy {policy} is not in scores.{score_name}.policies")
        names = [file.file for file in self.files]
        if len(set(names)) < len(names) or MANIFEST in names:
            raise ValueError(
                f"graphs, external_data and training_images must name different files, none of them {MANIFEST}"
            )
        return self

    def _check_version(self) -> None:
        if (self.pairs is not None) != (self.schema_version == 2):
            raise ValueError("pairs belongs to schema_version 2, and only to it")
        if self.pairs is None:
            newer = sorted(NEW_SCORES & set(self.scores))
            if newer:
                raise ValueError(f"scores {newer} belong to schema_version 2")
            return
        missing = [name for name in PAIR_SCORES if name not in self.scores]
        if missing:
            raise ValueError(f"pairs needs scores {missing}")
        if self.scores["certainty"].temperature != self.temperature:
            raise ValueError("scores.certainty.temperature must be temperature: it is the probability that is shown")

    def to_json(self) -> str:
        return self.model_dump_json(indent=2, exclude_none=True) + "\n"
