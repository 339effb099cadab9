"""Familiarity: the p-value `typicality`, from several witnesses, of calibration images and of all others.

Witnesses are scores that say how unusual an image is: the learned confidence, energy, and similarity to its nearest
neighbours. No single one is right for every model. `service.model.typicality` says how they become one p-value.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.model.references import Typicality
from service.model.scores import Floats, ScoreName
from service.model.typicality import lowest_of, quantiles_of

WITNESSES: tuple[ScoreName, ...] = ("confidence", "energy", "neighbours")
# How much a witness's rank counts beside the others; training/LOG.md has what was tried.
WEIGHTS: Mapping[ScoreName, float] = {"neighbours": 0.2}
FEWEST_CORRECT = 20  # with fewer correctly classified images, all calibration images are the reference


class Familiarity(NamedTuple):
    """The reference that a bundle keeps, and the score of each calibration image against the others."""

    typicality: Typicality
    own: Floats


def witnesses_of(scores: Iterable[ScoreName]) -> tuple[ScoreName, ...]:
    """Which of these scores are witnesses of familiarity."""
    present = set(scores)
    return tuple(name for name in WITNESSES if name in present)


def learn_familiarity(scores: Mapping[ScoreName, Floats], reference: NDArray[np.int64]) -> Familiarity:
    """Ranks every calibration image among those with the indices `reference`.

    An image of the reference is compared with the others, not with itself.
    """
    weights = weights_of(scores)
    ranks: dict[str, Floats] = {name: _ranks_among_others(values[reference]) for name, values in scores.items()}
    lowest = lowest_of(ranks, {str(name): weight for name, weight in weights.items()})
    typicality = Typicality(
        n=len(reference),
        components={name: quantiles_of(values[reference]) for name, values in scores.items()},
        weights={name: weights.get(name, 1.0) for name in scores} if weights else None,
        minimum=quantiles_of(lowest),
    )
    own = typicality.reference.log_odds({str(name): values for name, values in scores.items()})
    own[reference] = _log_odds(_ranks_among_others(lowest))
    return Familiarity(typicality, own)


def weights_of(witnesses: Iterable[ScoreName]) -> dict[ScoreName, float]:
    """The weights that are not 1; a witness that is alone needs none."""
    names = tuple(witnesses)
    return {name: WEIGHTS[name] for name in names if name in WEIGHTS} if len(names) > 1 else {}


def _ranks_among_others(values: Floats) -> Floats:
    """(k + ½) / n, where k of the n − 1 other values are at or below a value."""
    others_at_or_below = np.searchsorted(np.sort(values), values, side="right") - 1
    return np.asarray((others_at_or_below + 0.5) / len(values), np.float64)


def _log_odds(p: Floats) -> Floats:
    return np.asarray(np.log(p) - np.log1p(-p), np.float64)
