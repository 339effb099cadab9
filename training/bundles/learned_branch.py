"""A confidence branch for a classifier that is finished: fitted to what the layers of its exported graph show.

The classifier stays as it is. Only the branch's few layers are new, and they are ordinary nodes of the graph.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from service.model.bundle import Input
from training.bundles.held_out import FEWEST_TO_LEARN
from training.data.splits import LabelledImages
from training.errors import DataError
from training.graphs.branch import Branch, add_branch
from training.graphs.image_views import as_served
from training.learning.branch_fit import BranchSettings, Rows, fit_branch
from training.learning.branch_rows import BranchRows, images_that_fit, read_rows
from training.learning.cross_fit import cross_fit

# Of each image: fewer of many images, more of few.
FEWEST_VIEWS, MOST_VIEWS, WANTED_VIEWS = 2, 8, 10_000
# The classifier makes so few mistakes that nothing can be learnt from them.
HARDLY_WRONG = 0.995
# Cross-fitted logits teach better where they have so many times the mistakes of the classifier's own.
MORE_MISTAKES = 2.0


@dataclass(frozen=True)
class LearningImages:
    """Labelled images to learn doubt from, and whether the classifier was trained on them."""

    images: LabelledImages
    trained_on: bool | None  # None: nobody says


@dataclass(frozen=True)
class LearnedBranch:
    """The graph with `confidence_logit`, and what its user should know."""

    forward: onnx.ModelProto
    facts: str  # what it was learnt from, for the card
    notes: tuple[str, ...]


def learn_branch(
    forward: onnx.ModelProto,
    shape: Input,
    classes: int,
    learning: LearningImages,
    settings: BranchSettings | None = None,
    views: int | None = None,
) -> LearnedBranch:
    """Reads the layers of `forward` for views of the images, fits a branch to them, and appends it."""
    count = len(learning.images)
    if count < FEWEST_TO_LEARN:
        raise DataError(f"{count} images are too few to learn confidence from. Give at least {FEWEST_TO_LEARN}.")
    settings = settings or BranchSettings()
    views = views or max(FEWEST_VIEWS, min(MOST_VIEWS, WANTED_VIEWS // count))
    most = images_that_fit(forward, views, classes)
    images, notes = learning.images, []
    if count > most:
        images = images.take(np.sort(np.random.default_rng(settings.seed).permutation(count)[:most]))
        notes.append(
            f"the branch learns from {most:,} of {count:,} images: the layers of more would take too much disk"
        )
    with tempfile.TemporaryDirectory() as folder:
        rows = read_rows(forward, as_served(images.images, shape), views, settings.seed, Path(folder))
        truth = images.labels[rows.image]
        taught = _taught_on(rows, truth, learning.trained_on, settings.seed, notes)
        fitted = fit_branch(Rows(rows.inputs, taught, truth, rows.image, rows.is_hard), settings)
    if fitted.learnt_by_heart:
        notes.append(
            f"the branch learnt some images by heart: its loss is {fitted.held_out_loss:.3f} on images that were held "
            f"out, and {fitted.loss:.3f} on those it learnt from. More images help"
        )
    width = sum(rows.widths)
    scale = np.full(width, rows.scale, np.float32)
    branch = Branch(np.zeros(width, np.float32), scale, fitted.layers, settings.activation)
    facts = (
        f"Its confidence branch (hidden layers {list(settings.hidden)}, budget β = {settings.budget:g}) reads "
        f"{width:,} values of the exported graph: {rows.widths[0]:,} penultimate features and the channel "
        f"means of {len(rows.widths) - 1} layers. It learnt from {len(images):,} images, {views} ordinary and {views} "
        f"hard views of each"
    )
    return LearnedBranch(add_branch(forward, branch), facts, tuple(notes))


def _taught_on(
    rows: BranchRows, truth: NDArray[np.int64], trained_on: bool | None, seed: int, notes: list[str]
) -> NDArray[np.float32]:
    """The logits whose mistakes the branch learns: the classifier's own, or cross-fitted ones."""
    plain = rows.is_plain
    right = float(np.mean(rows.logits[plain].argmax(axis=1) == truth[plain]))
    said = {True: "it was trained on them", False: "it was not trained on them", None: "perhaps it was trained on them"}
    notes.append(f"the classifier is right about {right:.1%} of the images to learn from; {said[trained_on]}")
    if trained_on is not False:
        crossed = cross_fit(
            *(rows.inputs[:, : rows.features], truth, rows.image, plain, rows.logits.shape[1]), seed=seed
        )
        notes.append(
            f"a last layer that did not see an image is right about {crossed.accuracy:.1%} of them (cross-fitted)"
        )
        if 1 - crossed.accuracy > MORE_MISTAKES * (1 - right):
            notes.append("the branch learns from the mistakes of the cross-fitted layers")
            return crossed.logits
    if right > HARDLY_WRONG:
        notes.append(
            f"the classifier makes hardly a mistake here ({1 - right:.2%}), and doubt is learnt from mistakes: give "
            f"--data images that it was not trained on"
        )
    return rows.logits
