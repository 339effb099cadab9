"""The bank of neighbours of a bundle: images that the model knows, as the last layers of its graph see them.

They are training images where those are known. Of a model from elsewhere they are half of the calibration images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from service.model.bundle import Input
from training.calibration.calibrate import Evidence
from training.calibration.halves import halves_of
from training.data.splits import LabelledImages
from training.graphs.features import FEATURES, NoFeaturesError, with_features
from training.graphs.neighbours import (
    BANK,
    BANK_SIZE,
    NEIGHBOUR_K,
    add_neighbours,
    choose_bank,
    has_neighbours,
    neighbour_similarity,
)
from training.graphs.run import as_served, open_graph, run_graph

BANK_CANDIDATES = 5_000
FEATURES_BATCH = 50
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
    source = known if known is not None else evidence.calibration.take(halves_of(len(evidence.calibration)).a)
    source = _at_most(source, BANK_CANDIDATES)
    if len(source) < 2 * NEIGHBOUR_K:
        return WithBank(forward, evidence, f"no neighbours: {len(source)} images are too few for a bank")
    try:
        features = features_of(forward, shape, source)
    except NoFeaturesError as problem:
        return WithBank(forward, evidence, f"no neighbours: {problem}")
    bank = features[choose_bank(features, source.labels, BANK_SIZE, SEED)]
    scored = add_neighbours(forward, bank, min(NEIGHBOUR_K, len(bank) - 1))
    return WithBank(scored, evidence if known is not None else _without_own(scored, shape, evidence))


def features_of(forward: onnx.ModelProto, shape: Input, source: LabelledImages) -> NDArray[np.float32]:
    """The penultimate features [N,D] of images of any size, a batch at a time."""
    session = open_graph(with_features(forward))
    parts = [
        run_graph(session, as_served(source.images[start : start + FEATURES_BATCH], shape))[FEATURES]
        for start in range(0, len(source), FEATURES_BATCH)
    ]
    features = np.concatenate(parts)
    if len(features) != len(source):
        raise NoFeaturesError(f"what the last linear layer reads has {len(features)} rows for {len(source)} images.")
    return features


def _without_own(forward: onnx.ModelProto, shape: Input, evidence: Evidence) -> Evidence:
    """Calibration images may be in the bank: their similarity is that to the others, and not to themselves."""
    features = features_of(forward, shape, evidence.calibration)
    bank = np.ascontiguousarray(bank_of(forward).T)
    length = np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    nearest = ((features / length) @ bank.T).argmax(axis=1)
    in_bank = np.flatnonzero(np.linalg.norm(features / length - bank[nearest], axis=1) <= SAME_IMAGE)
    if not len(in_bank):
        return evidence
    k = min(NEIGHBOUR_K, len(bank) - 1)
    found = neighbour_similarity(features[in_bank], bank, k, nearest[in_bank])
    own: Mapping[int, float] = dict(zip(in_bank.tolist(), found.tolist(), strict=True))
    return replace(evidence, own_similarity=own)


def bank_of(forward: onnx.ModelProto) -> NDArray[np.float32]:
    """The bank of a graph [D,M]: a column for each image in it, of length 1."""
    tensor = next(tensor for tensor in forward.graph.initializer if tensor.name == BANK)
    return np.asarray(numpy_helper.to_array(tensor), np.float32)


def _at_most(source: LabelledImages, most: int) -> LabelledImages:
    if len(source) <= most:
        return source
    return source.take(np.sort(np.random.default_rng(SEED).permutation(len(source))[:most]))
