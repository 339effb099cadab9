"""Familiarity: the p-value `typicality`, from several witnesses, of calibration images and of all others.

Witnesses are scores that say how unusual an image is: the learned confidence, energy, and similarity to its nearest
neighbours. No single one is right for every model. `service.model.typicality` says how they become one p-value.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.model.references import Typicality
from service.model.scores import Floats, ScoreName
from service.model.typicality import lowest_of, quantiles_of
from training.metrics.detection import auroc

WITNESSES: tuple[ScoreName, ...] = ("confidence", "energy", "neighbours")
# How much neighbours count where another witness is better; training/LOG.md has what was tried.
LESS = 0.2
FEWEST_CORRECT = 20  # with fewer correctly classified images, all calibration images are the reference


class Familiarity(NamedTuple):
    """The reference that a bundle keeps, and the score of each calibration image against the others."""

    typicality: Typicality
    own: Floats


def witnesses_of(scores: Iterable[ScoreName]) -> tuple[ScoreName, ...]:
    """Which of these scores are witnesses of familiarity."""
    present = set(scores)
    return tuple(name for name in WITNESSES if name in present)


def weights_by(own: Mapping[ScoreName, Floats], proxies: Mapping[ScoreName, Floats]) -> dict[ScoreName, float]:
    """How much each witness's rank counts; the weights that are not 1.

    Neighbours count less, unless they tell OOD proxies from calibration images better than every other witness does:
    they are poor in a small network that was trained from scratch, and the best in one that was pretrained on photos.
    """
    worth = {name: auroc(own[name], proxies[name]) for name in own}
    neighbours = worth.pop("neighbours", None)
    if neighbours is None or not worth or neighbours > max(worth.values()):
        return {}
    return {"neighbours": LESS}


def learn_familiarity(
    scores: Mapping[ScoreName, Floats],
    reference: NDArray[np.int64],
    weights: Mapping[ScoreName, float] = MappingProxyType({}),
) -> Familiarity:
    """Ranks every calibration image among those with the indices `reference`.

    An image of the reference is compared with the others, not with itself. A witness has the weight 1 unless given.
    """
    weights = {name: weight for name, weight in weights.items() if name in scores} if len(scores) > 1 else {}
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


def _ranks_among_others(values: Floats) -> Floats:
    """(k + ½) / n, where k of the n − 1 other values are at or below a value."""
    others_at_or_below = np.searchsorted(np.sort(values), values, side="right") - 1
    return np.asarray((others_at_or_below + 0.5) / len(values), np.float64)


def _log_odds(p: Floats) -> Floats:
    return np.asarray(np.log(p) - np.log1p(-p), np.float64)
