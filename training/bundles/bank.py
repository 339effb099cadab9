"""The bank of neighbours of a bundle: images that the model knows, as the last layers of its graph see them.

Where the training images are known, they are the middles of groups of them. Of a model from elsewhere they are half of
the calibration images, each by itself: an image's own part in a middle could not be left out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from service.model.bundle import Input
from training.calibration.calibrate import Evidence
from training.calibration.halves import Indices, halves_of
from training.data.splits import LabelledImages, UnlabelledImages
from training.graphs.features import FEATURES, NoFeaturesError, with_features
from training.graphs.image_views import as_served
from training.graphs.images_at_once import images_at_once
from training.graphs.neighbours import (
    BANK,
    BANK_SIZE,
    NEIGHBOUR_K,
    add_neighbours,
    centres_of,
    choose_bank,
    has_neighbours,
    neighbour_similarity,
)
from training.graphs.run import open_graph, run_batches
from training.graphs.weights import weights_folder

CalibrationImages = LabelledImages | UnlabelledImages
BANK_CANDIDATES = 5_000
FEATURES_BATCH = 50  # at most
SAME_IMAGE = 2e-5  # the distance of an image's normalised features from themselves, as rounding leaves it
SEED = 0


@dataclass(frozen=True)
class WithBank:
    """The forward graph with neighbours, the evidence that knows of them, and why there are none."""

    forward: onnx.ModelProto
    evidence: Evidence
    note: str | None = None


def with_bank(forward: onnx.ModelProto, shape: Input, evidence: Evidence) -> WithBank:
    """Adds a bank to a graph that has none; a graph whose features cannot be found stays as it is, with a note."""
    known = evidence.train
    if has_neighbours(forward):
        # A bank of training images holds none of the calibration images.
        return WithBank(forward, evidence if known is not None else _without_own(forward, shape, evidence))
    source = evidence.calibration if known is None else known
    chosen = _at_most(np.arange(len(known)) if known is not None else halves_of(len(source)).a, BANK_CANDIDATES)
    if len(chosen) < 2 * NEIGHBOUR_K:
        return WithBank(forward, evidence, f"no neighbours: {len(chosen)} images are too few for a bank")
    # Those of all calibration images are needed afterwards: where they fit into memory, one pass is enough for both.
    together = known is None and len(source) <= BANK_CANDIDATES
    try:
        found = features_of(forward, shape, source if together else source.take(chosen))
    except NoFeaturesError as problem:
        return WithBank(forward, evidence, f"no neighbours: {problem}")
    features, labels = found[chosen] if together else found, source.labels
    rows = choose_bank(features, None if labels is None else labels[chosen], BANK_SIZE, SEED)
    bank = features[rows] if known is None else centres_of(features, rows)
    scored = add_neighbours(forward, bank, min(NEIGHBOUR_K, len(bank) - 1))
    if known is not None:
        return WithBank(scored, evidence)
    return WithBank(scored, _without_own(scored, shape, evidence, [found] if together else None))


def features_of(forward: onnx.ModelProto, shape: Input, source: CalibrationImages) -> NDArray[np.float32]:
    """The penultimate features [N,D] of images of any size."""
    return np.concatenate(list(_batches_of_features(forward, shape, source, "reading features for the bank")))


def _batches_of_features(
    forward: onnx.ModelProto, shape: Input, source: CalibrationImages, step: str
) -> Iterator[NDArray[np.float32]]:
    session = open_graph(with_features(forward))
    batch = images_at_once(forward, FEATURES_BATCH)
    try:
        for (features,) in run_batches(session, [FEATURES], as_served(source.images, shape), batch, step=step):
            yield features
    except ValueError as problem:
        raise NoFeaturesError(f"the last linear layer does not read a row for each image: {problem}.") from problem


def _without_own(
    forward: onnx.ModelProto, shape: Input, evidence: Evidence, features: Iterable[NDArray[np.float32]] | None = None
) -> Evidence:
    own = own_similarity_of(forward, shape, evidence.calibration, features)
    return replace(evidence, own_similarity=own) if own else evidence


def own_similarity_of(
    forward: onnx.ModelProto,
    shape: Input,
    images: CalibrationImages,
    features: Iterable[NDArray[np.float32]] | None = None,
) -> dict[int, float]:
    """Calibration images may be in the bank: their similarity, by index, to the others and not to themselves.

    `features` are those of the images, in parts, where they are known.
    """
    bank = np.ascontiguousarray(bank_of(forward).T)
    k = min(NEIGHBOUR_K, len(bank) - 1)
    own: dict[int, float] = {}
    first = 0
    if features is None:
        features = _batches_of_features(forward, shape, images, "finding images of the bank")
    for part in features:
        length = np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)
        nearest = ((part / length) @ bank.T).argmax(axis=1)
        in_bank = np.flatnonzero(np.linalg.norm(part / length - bank[nearest], axis=1) <= SAME_IMAGE)
        if len(in_bank):
            found = neighbour_similarity(part[in_bank], bank, k, nearest[in_bank])
            own |= zip((first + in_bank).tolist(), found.tolist(), strict=True)
        first += len(part)
    return own


def bank_of(forward: onnx.ModelProto) -> NDArray[np.float32]:
    """The bank of a graph [D,M]: a column for each image in it, of length 1."""
    tensor = next(tensor for tensor in forward.graph.initializer if tensor.name == BANK)
    folder = weights_folder(forward)
    return np.asarray(numpy_helper.to_array(tensor, base_dir="" if folder is None else str(folder)), np.float32)


def _at_most(chosen: Indices, most: int) -> Indices:
    if len(chosen) <= most:
        return chosen
    return chosen[np.sort(np.random.default_rng(SEED).permutation(len(chosen))[:most])]
