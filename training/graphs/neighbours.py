"""The `neighbours` score inside a forward graph: how similar an image is to its nearest images in a bank.

    bank = choose_bank(features, labels)
    scored = add_neighbours(forward, centres_of(features, bank), NEIGHBOUR_K)

The score is the cosine similarity between the penultimate features of an image and the k-th nearest of the bank's rows
(Sun et al. 2022, "Out-of-distribution detection with deep nearest neighbors", arXiv:2204.06507). The bank is an
initialiser, so the score needs nothing but the graph. It is higher for images to be trusted. k must be well
below the number of rows of each class: beyond it the k-th nearest row is one of another class.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from training.errors import ExportError
from training.graphs.append import Appender, has_output, without_output
from training.graphs.features import append_features, own_copy

SIMILARITY, BANK = "neighbour_similarity", "neighbour_bank"
# Chosen on calibration images: see training/LOG.md, 2026-11-18.
BANK_SIZE, NEIGHBOUR_K = 512, 1
CENTRE_PASSES = 15
# The zero vector has no direction: its similarity to everything is 0, and never NaN.
SMALLEST_NORM = 1e-12

Features = NDArray[np.float32]


def add_neighbours(forward: onnx.ModelProto, bank: Features, k: int) -> onnx.ModelProto:
    """A copy with one more output, `neighbour_similarity` float32 [N].

    `bank` holds a row of features for each image in it, as `with_features` shows them; the graph keeps the rows with
    length 1.
    """
    if has_neighbours(forward):
        raise ExportError(f"the graph already has the output {SIMILARITY!r}. Remove it with without_neighbours.")
    scored = own_copy(forward)
    graph = scored.graph
    features, size = append_features(scored)
    _check_bank(bank, size, k)
    rows = np.ascontiguousarray(_normalised(bank.astype(np.float64)).T.astype(np.float32))
    graph.initializer.append(numpy_helper.from_array(rows, BANK))
    append = Appender(graph, "neighbours")
    axis = append.int64s("axis", 1)
    norm = append.op("ReduceL2", [features, axis], "norm", keepdims=1)
    norm = append.op("Max", [norm, append.constant("smallest_norm", np.array(SMALLEST_NORM, np.float32))], "safe_norm")
    normalised = append.op("Div", [features, norm], "normalised")
    similarities = append.op("MatMul", [normalised, BANK], "similarities")
    if k == 1:
        graph.node.append(helper.make_node("ReduceMax", [similarities, axis], [SIMILARITY], "nearest", keepdims=0))
    else:
        count = append.int64s("k", k)
        outputs = ["neighbours/nearest", "neighbours/nearest_rows"]
        graph.node.append(helper.make_node("TopK", [similarities, count], outputs, "nearest", axis=1))
        last = append.constant("last", np.array(k - 1, np.int64))
        graph.node.append(helper.make_node("Gather", [outputs[0], last], [SIMILARITY], "kth_nearest", axis=1))
    graph.output.append(helper.make_tensor_value_info(SIMILARITY, TensorProto.FLOAT, ["N"]))
    return scored


def has_neighbours(model: onnx.ModelProto) -> bool:
    """Whether the graph returns `neighbour_similarity`."""
    return has_output(model, SIMILARITY)


def without_neighbours(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without `neighbour_similarity` and all that only it needs; what other outputs need stays as it is."""
    return without_output(model, SIMILARITY)


def choose_bank(
    features: Features, labels: NDArray[np.int64] | None, size: int = BANK_SIZE, seed: int = 0
) -> NDArray[np.int64]:
    """The indices, in ascending order, of the rows that form the bank: at random, and as many of each class as can be.

    A class with few rows gives all it has, and the others share the rest. No class is left out: with more classes than
    `size` there is one row of each. Fewer rows than `size` are all taken. Without labels all rows are one class.
    """
    if labels is None:
        labels = np.zeros(len(features), np.int64)
    if len(features) != len(labels) or len(features) == 0 or size < 1:
        raise ExportError(
            f"a bank of {size} cannot be chosen from {len(features)} images with {len(labels)} labels: expected a size "
            f"of at least 1, and as many labels as images, at least one."
        )
    rng = np.random.default_rng(seed)
    classes, counts = np.unique(labels, return_counts=True)
    shares = _shares(counts, max(size, len(classes)))
    chosen = [
        rng.choice(np.flatnonzero(labels == label), share, replace=False)
        for label, share in zip(classes, shares, strict=True)
    ]
    return np.sort(np.concatenate(chosen))


def centres_of(features: Features, chosen: NDArray[np.int64], passes: int = CENTRE_PASSES) -> Features:
    """The chosen rows, each moved to the middle of the rows that are nearest to it (spherical k-means).

    So a bank speaks for all rows and not for those alone that were drawn. Features count by their direction.
    """
    rows = _normalised(features.astype(np.float64)).astype(np.float32)
    centres = rows[chosen]
    for _ in range(passes if len(chosen) < len(rows) else 0):
        nearest = np.concatenate(
            [(part @ centres.T).argmax(axis=1) for part in np.array_split(rows, 1 + len(rows) // 1_000)]
        )
        sums = np.zeros(centres.shape, np.float64)
        np.add.at(sums, nearest, rows)
        moved = np.linalg.norm(sums, axis=1) > SMALLEST_NORM  # a centre that is nearest to none stays where it is
        centres = np.where(moved[:, None], _normalised(sums), centres).astype(np.float32)
    return centres


def _shares(counts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """How many rows each class gives: the smallest class first, each at most an even part of what is left."""
    shares = np.zeros_like(counts)
    left = size
    for place, index in enumerate(np.argsort(counts, kind="stable")):
        shares[index] = min(counts[index], left // (len(counts) - place))
        left -= int(shares[index])
    return shares


def neighbour_similarity(
    features: Features, bank: Features, k: int, own: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """What the graph computes, by numpy.

    `own[i]` is the row of the bank that is image i itself, or -1. That row does not count for image i: an image is no
    evidence for itself, and would be its own nearest neighbour.
    """
    _check_bank(bank, features.shape[1], k, left_out=int(own is not None and bool((own >= 0).any())))
    similarities = _normalised(features.astype(np.float64)) @ _normalised(bank.astype(np.float64)).T
    if own is not None:
        in_bank = np.flatnonzero(own >= 0)
        similarities[in_bank, own[in_bank]] = -np.inf
    kth: NDArray[np.float64] = -np.partition(-similarities, k - 1, axis=1)[:, k - 1]
    return kth


def _normalised(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms: NDArray[np.float64] = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(norms, SMALLEST_NORM)


def _check_bank(bank: Features, size: int, k: int, left_out: int = 0) -> None:
    if k < 1:
        raise ExportError(f"k is {k}, expected at least 1.")
    if bank.ndim != 2 or bank.shape[1] != size:
        raise ExportError(
            f"the bank has shape {list(bank.shape)}, expected [M,{size}]: the network has {size} features."
        )
    if len(bank) < k + left_out:
        raise ExportError(f"the bank has {len(bank)} rows, expected at least {k + left_out}. Give more images.")
    if not np.isfinite(bank).all():
        raise ExportError("the bank holds NaN or infinite features. Look at what the network returns for its images.")
