"""A gate on mixed traffic: own (in-distribution) images and a stated share of OOD images among them.

An OOD image has no correct answer, so an accepted one counts as a wrong answer. Own images and OOD images are weighted
by their shares of the traffic, however many of each are at hand: (1 − share) / N for each own image, share / M for each
OOD image. Conventions are those of `training.metrics.selective`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from service.model.scores import Floats

OOD_SHARE = 0.2
# Names of figures at this share, in bundle.json and evaluation.json.
MIXED_RISK, MIXED_AUGRC = "wrong_among_accepted_20_ood", "augrc_20_ood"


class RiskCoverage(NamedTuple):
    """One point for each distinct score, from the strictest gate that accepts anything to the one that accepts all."""

    coverage: Floats  # share of the traffic that is accepted
    risk: Floats  # share of wrong answers among what is accepted


def wrong_among_accepted(
    own_accepted: ArrayLike, right: ArrayLike, ood_accepted: ArrayLike, ood_share: float = OOD_SHARE
) -> float | None:
    """The share of accepted images that are misclassified or OOD; None if nothing is accepted."""
    own, correct, ood = (
        _answers(values, name)
        for values, name in ((own_accepted, "own_accepted"), (right, "right"), (ood_accepted, "ood_accepted"))
    )
    _check_lengths(len(own), len(correct))
    own_weight, ood_weight = _weights(len(own), len(ood), ood_share)
    foreign = ood_weight * np.count_nonzero(ood)
    accepted = own_weight * np.count_nonzero(own) + foreign
    return float((own_weight * np.count_nonzero(own & ~correct) + foreign) / accepted) if accepted else None


def augrc(score: ArrayLike, wrong: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Area under the generalised risk–coverage curve: the mean over coverage of P(accepted and wrong).

    Traub et al. (2024), https://arxiv.org/abs/2407.01032. A wrong answer adds its weight for as long as it is accepted:
    at every coverage above the weight of all higher scores. Among equal scores each order is equally likely, and each
    lies above half of the others on average.
    """
    values, mistaken = _scores(score, "score"), _answers(wrong, "wrong")
    _check_lengths(len(values), len(mistaken))
    mass = _checked_weights(weights, len(values))
    _, group = np.unique(values, return_inverse=True)
    of_group = np.bincount(group, weights=mass)
    wrong_of_group = np.bincount(group, weights=mass * mistaken)
    below = np.cumsum(of_group) - of_group
    return float(np.sum(wrong_of_group * (below + of_group / 2)))


def mixed_augrc(own_score: ArrayLike, right: ArrayLike, ood_score: ArrayLike, ood_share: float = OOD_SHARE) -> float:
    """AUGRC on mixed traffic."""
    return augrc(*_mixed(own_score, right, ood_score, ood_share))


def risk_coverage(
    own_score: ArrayLike, right: ArrayLike, ood_score: ArrayLike, ood_share: float = OOD_SHARE
) -> RiskCoverage:
    """The curve on mixed traffic, for plots."""
    values, wrong, weights = _mixed(own_score, right, ood_score, ood_share)
    _, group = np.unique(-values, return_inverse=True)
    coverage = np.cumsum(np.bincount(group, weights=weights))
    mistakes = np.cumsum(np.bincount(group, weights=weights * wrong))
    met = coverage > 0  # with a share of 0, OOD images weigh nothing, and no risk is defined above the own images
    return RiskCoverage(np.minimum(coverage[met], 1), np.minimum(mistakes[met] / coverage[met], 1))


def joint_rank(familiarity: ArrayLike, certainty: ArrayLike, calibration_certainty: ArrayLike) -> Floats:
    """One number [N] to rank images by that a gate refuses for either reason, between 0 and 1.

    It is the lower of an image's familiarity, a p-value, and of the share of calibration images that are at most as
    certain. An image is ranked low if it is unusual in one of the two.
    """
    reference = np.sort(_scores(calibration_certainty, "calibration_certainty"))
    p, sure = _scores(familiarity, "familiarity"), _scores(certainty, "certainty")
    _check_lengths(len(p), len(sure))
    return np.minimum(p, np.searchsorted(reference, sure, side="right") / len(reference))


def _mixed(
    own_score: ArrayLike, right: ArrayLike, ood_score: ArrayLike, ood_share: float
) -> tuple[Floats, NDArray[np.bool_], Floats]:
    """Score, wrong, weight of all images."""
    own, ood, correct = _scores(own_score, "own_score"), _scores(ood_score, "ood_score"), _answers(right, "right")
    _check_lengths(len(own), len(correct))
    own_weight, ood_weight = _weights(len(own), len(ood), ood_share)
    return (
        np.concatenate([own, ood]),
        np.concatenate([~correct, np.ones(len(ood), np.bool_)]),
        np.repeat([own_weight, ood_weight], [len(own), len(ood)]),
    )


def _weights(own: int, ood: int, ood_share: float) -> tuple[float, float]:
    if not 0 <= ood_share < 1:
        raise ValueError(f"ood_share is {ood_share:g}: expected a share from 0 to below 1")
    if not own or (ood_share and not ood):
        raise ValueError(f"{own} own images and {ood} OOD images: expected at least one of each")
    return (1 - ood_share) / own, ood_share / ood if ood else 0.0


def _checked_weights(weights: ArrayLike | None, n: int) -> Floats:
    """As shares of their sum."""
    mass = np.ones(n) if weights is None else np.asarray(weights, np.float64).ravel()
    if len(mass) != n or not np.isfinite(mass).all() or (mass < 0).any() or not mass.any():
        raise ValueError(f"{len(mass)} weights for {n} scores: expected as many, finite, none below 0 and one above")
    mass = mass / mass.max()  # so that the sum of huge ones does not overflow
    return np.asarray(mass / mass.sum(), np.float64)


def _scores(score: ArrayLike, name: str) -> Floats:
    values = np.asarray(score, np.float64).ravel()
    if not len(values):
        raise ValueError(f"`{name}` is empty: expected at least one score")
    if not np.isfinite(values).all():
        raise ValueError(f"`{name}` holds NaN or infinity: expected finite numbers")
    return values


def _answers(values: ArrayLike, name: str) -> NDArray[np.bool_]:
    answers = np.asarray(values).ravel()
    if answers.dtype != np.bool_ and not np.isin(answers, (0, 1)).all():
        raise ValueError(f"`{name}` holds other values than true and false")
    return answers.astype(np.bool_)


def _check_lengths(scores: int, answers: int) -> None:
    if scores != answers:
        raise ValueError(f"{scores} images for {answers} answers: expected as many")
