"""The decisions, each made in one place: probabilities, scores, and the gate.

A score is higher for inputs the model can be trusted on, and lies on an unbounded scale (float32 sigmoids are
already exactly 1 at 17, where ties would decide). Accept iff score > threshold. People see the float64 sigmoid; of a
score with no natural zero or unit (energy, max_logit, neighbours) that of its distance from the calibration
images' median. Calibration and evaluation call these same functions.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from service.model.typicality import TypicalityReference

ScoreName = Literal[
    "confidence",
    "confidence_preprocessed",
    "max_softmax",
    "odin",
    "energy",
    "max_logit",
    "neighbours",
    "typicality",
    "certainty",
]
# These need the perturbed graph and an epsilon; all others are read from the forward graph.
PREPROCESSED_SCORES: frozenset[ScoreName] = frozenset({"confidence_preprocessed", "odin"})
# These have no natural zero or unit: they are shown relative to the calibration images (see `shown`).
RELATIVE_SCORES: frozenset[ScoreName] = frozenset({"energy", "max_logit", "neighbours"})
# These say how sure the model is of its class; an image that they refuse is unsure, not unfamiliar.
SOFTMAX_SCORES: frozenset[ScoreName] = frozenset({"max_softmax", "certainty", "odin"})
# What typicality may be made of: what the forward graph tells about an image by itself.
TYPICALITY_COMPONENTS: frozenset[ScoreName] = frozenset(
    {"confidence", "max_softmax", "energy", "max_logit", "neighbours"}
)

# Where the histograms of live traffic and of the calibration split are cut: sigmoids of scores, as Prometheus
# reads them (value <= edge). Finer towards both ends, where scores gather; the last edge takes everything.
HISTOGRAM_EDGES: tuple[float, ...] = (
    *(0.001, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7),
    *(0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99, 0.995, 0.999, 0.9999, 0.99999, 1.0),
)

Floats = npt.NDArray[np.float64]
Outputs = Mapping[str, npt.NDArray[np.float32]]
Numbers = Mapping[str, npt.NDArray[np.floating[Any]]]  # outputs, some of them converted already


def softmax(logits: npt.ArrayLike, temperature: float = 1.0) -> Floats:
    """Class probabilities [N, K] of logits [N, K]; the temperature changes what is shown, never the gate."""
    scaled = np.asarray(logits, np.float64) / temperature
    scaled -= np.maximum.reduce(scaled, axis=-1, keepdims=True)
    np.exp(scaled, out=scaled)
    scaled /= np.add.reduce(scaled, axis=-1, keepdims=True)
    return scaled


def sigmoid(score: npt.ArrayLike) -> Floats:
    """Shows an unbounded score as a number between 0 and 1."""
    # exp of a negative number cannot overflow: 1 / (1 + exp(-x)) for x >= 0, and exp(x) / (1 + exp(x)) below.
    score = np.asarray(score, np.float64)
    return np.asarray(np.exp(np.minimum(score, 0.0)) / (1.0 + np.exp(np.copysign(score, -1.0))), np.float64)


def log_odds_of_max(logits: npt.ArrayLike, temperature: float = 1.0) -> Floats:
    """Log-odds [N] of the largest softmax: l_max − logsumexp(others), which no saturation can tie."""
    scaled = np.array(logits, np.float64)
    if temperature != 1.0:
        scaled /= temperature
    scaled.sort(axis=-1)
    largest, second = scaled[..., -1], scaled[..., -2]
    others = np.add.reduce(np.exp(scaled[..., :-1] - scaled[..., -2:-1]), axis=-1)
    return np.asarray(largest - (second + np.log(others)), np.float64)


def log_sum_exp(logits: npt.ArrayLike) -> Floats:
    """The energy score [N] of Liu et al. (2020) at T = 1: log Σ exp(l), without overflow."""
    exact = np.asarray(logits, np.float64)
    largest = exact.max(axis=-1, keepdims=True)
    return np.asarray(np.log(np.exp(exact - largest).sum(axis=-1)) + largest[..., 0], np.float64)


def score_images(
    score: ScoreName,
    outputs: Numbers,
    temperature: float | None = None,
    typicality: TypicalityReference | None = None,
    known: Mapping[ScoreName, Floats] | None = None,
) -> Floats:
    """The score [N] of a batch from what the graph returned for it; `odin` and `certainty` need their temperature.

    `typicality` takes its components from the `known` scores of the same batch where they are there.
    """
    if score == "confidence":
        return outputs["confidence_logit"].astype(np.float64)
    if score == "confidence_preprocessed":
        return outputs["confidence_logit_preprocessed"].astype(np.float64)
    if score == "max_softmax":
        return log_odds_of_max(outputs["logits"])
    if score == "energy":
        return log_sum_exp(outputs["logits"])
    if score == "max_logit":
        return np.asarray(outputs["logits"].max(axis=-1), np.float64)
    if score == "neighbours":
        return outputs["neighbour_similarity"].astype(np.float64)
    if score == "typicality":
        assert typicality is not None, "typicality is read against the calibration images"
        components = dict(known or {})
        for name in cast(Iterable[ScoreName], typicality.components):
            if name not in components:
                components[name] = score_images(name, outputs)
        return typicality.log_odds(components)  # type: ignore[arg-type]
    assert temperature is not None, "odin and certainty are read under a temperature of their own"
    return log_odds_of_max(outputs["logits" if score == "certainty" else "logits_preprocessed"], temperature)


def accept(score: float, threshold: float) -> bool:
    """The gate: an input whose score only equals the threshold is refused."""
    return score > threshold


def shown(scores: npt.ArrayLike, location: float = 0.0, scale: float = 1.0) -> Floats:
    """Scores as people and histograms see them: sigmoid((score − location) / scale)."""
    return sigmoid((np.asarray(scores, np.float64) - location) / scale)


def histogram(scores: npt.ArrayLike, location: float = 0.0, scale: float = 1.0) -> tuple[int, ...]:
    """Counts of scores (unbounded scale), as they are shown, between HISTOGRAM_EDGES: the reference histogram."""
    bins = np.searchsorted(HISTOGRAM_EDGES, shown(scores, location, scale), side="left")
    return tuple(np.bincount(bins, minlength=len(HISTOGRAM_EDGES)).tolist())
