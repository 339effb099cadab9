"""The pairs of a bundle: every policy that asks both questions, and which of them is the default."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Default, Score
from service.model.pairs import (
    CERTAINTY_EDGES,
    FAMILIARITY_EDGES,
    Counts,
    ExpectedRefusals,
    JointHistogram,
    PairPolicy,
    Pairs,
    RefusedShare,
)
from service.model.scores import Outputs, ScoreName, sigmoid
from training.calibration.halves import FEWEST_TO_SPLIT, Halves
from training.calibration.pair_policies import (
    Pair,
    PairScores,
    accept_all_pair,
    as_often,
    balanced_pair,
    foreign_only_pair,
    is_worse_than_accepting_all,
    ood_holdout_pair,
    refusals,
    risk_pair,
    target_rejection_pair,
)
from training.calibration.policies import RISK, TARGET_REJECTION, Wanted
from training.errors import DataError
from training.metrics.intervals import share_interval

BALANCED, FOREIGN_ONLY, ACCEPT_ALL = "balanced", "foreign_only", "accept_all"


class MadePairs(NamedTuple):
    """What goes into the bundle, a sentence about each policy that is left out, and a warning nobody may overlook."""

    pairs: Pairs
    default: Default
    notes: tuple[str, ...]
    warning: str | None


def pair_scores(
    scores: Mapping[ScoreName, Score], outputs: Outputs, right: NDArray[np.bool_] | None = None
) -> PairScores:
    """Familiarity and certainty of images that are not among the calibration images."""
    return PairScores(
        scores["typicality"].of_images("typicality", outputs),
        scores["certainty"].of_images("certainty", outputs),
        right,
    )


def make_pairs(
    own: PairScores, halves: Halves, proxies: PairScores, ood: Mapping[str, PairScores], wanted: Wanted
) -> MadePairs:
    """Every pair that these images allow; `own` are the calibration images."""
    notes: list[str] = []
    foreign = as_often(proxies, ood)
    named = f"OOD images, from {', '.join(ood)} and proxies in equal parts" if ood else "OOD proxies"
    made: dict[str, Pair] = {BALANCED: balanced_pair(own, foreign, own.take(halves.a), foreign=named)}
    made[FOREIGN_ONLY] = foreign_only_pair(own)
    default = BALANCED
    if made[BALANCED].familiarity is None and made[BALANCED].certainty is None:
        notes.append(f"policy '{BALANCED}' {made[BALANCED].how}.")
        if made[FOREIGN_ONLY].familiarity is not None:
            default = FOREIGN_ONLY
            notes.append(
                f"the default is '{FOREIGN_ONLY}', which refuses unfamiliar images and makes no promise: how many of "
                f"your own it refuses is known roughly, from {len(own)} calibration images."
            )

    def add(name: str, make: Callable[[], Pair]) -> None:
        try:
            made[name] = make()
        except DataError as problem:
            notes.append(f"left out {problem}")

    risk = RISK if wanted.risk is None else wanted.risk
    add("risk", lambda: _risk_pair(own, halves, foreign, risk, wanted.alpha))
    if ood:
        made["ood_holdout"] = ood_holdout_pair(own, ood)
    warning = None
    if is_worse_than_accepting_all(made[default], own, foreign):
        warning = (
            f"policy '{default}' lets more wrong answers pass than no gate at all, on the calibration images and on "
            "images made from them. The default is 'accept_all': NOTHING is refused. Check that labels and images "
            "belong together, and that the images are prepared as the model expects."
        )
    made[ACCEPT_ALL] = accept_all_pair(warning)
    policies = {name: pair_policy(pair, own) for name, pair in made.items()}
    return MadePairs(
        Pairs(joint=joint_histogram(own), policies=policies),
        Default(policy=default if warning is None else ACCEPT_ALL),
        tuple(notes),
        warning,
    )


def _risk_pair(own: PairScores, halves: Halves, proxies: PairScores, risk: float, alpha: float) -> Pair:
    if not len(halves.b):
        raise DataError(
            f"the pair 'risk': {len(own)} calibration images are too few to test a promise on. Give at least "
            f"{FEWEST_TO_SPLIT}."
        )
    return risk_pair(own.take(halves.a), own.take(halves.b), risk, alpha, proxies)


def with_target_rejection(pairs: Pairs, default: Default, traffic: PairScores, rate: float) -> Pairs:
    """The pairs and one more, which refuses a share of the user's own traffic, divided as the default pair does."""
    like = pairs.policies.get(default.policy, next(iter(pairs.policies.values()))).expected
    pair = target_rejection_pair(traffic, rate, like.unfamiliar.rate, like.unsure.rate)
    return pairs.model_copy(update={"policies": pairs.policies | {TARGET_REJECTION: pair_policy(pair, traffic)}})


def pair_policy(pair: Pair, own: PairScores) -> PairPolicy:
    """A pair as a bundle keeps it, with what it refuses of the calibration images."""
    refused = refusals(pair, own)
    n = len(own.familiarity)
    return PairPolicy(
        familiarity=pair.familiarity,
        certainty=pair.certainty,
        expected=ExpectedRefusals(
            unfamiliar=_share(refused.unfamiliar, n), unsure=_share(refused.unsure, n), total=_share(refused.any, n)
        ),
        n=n,
        how=pair.how,
    )


def _share(refused: NDArray[np.bool_], n: int) -> RefusedShare:
    count = int(refused.sum())
    return RefusedShare(rate=count / n, interval=share_interval(count, n))


def joint_histogram(own: PairScores) -> JointHistogram:
    """The calibration images by familiarity and certainty, correctly classified and misclassified ones apart."""
    right = np.ones(len(own.familiarity), np.bool_) if own.right is None else own.right
    return JointHistogram(correct=_counts(own, right), wrong=_counts(own, ~right))


def _counts(own: PairScores, chosen: NDArray[np.bool_]) -> Counts:
    rows = np.searchsorted(FAMILIARITY_EDGES, sigmoid(own.familiarity[chosen]), side="left")
    columns = np.searchsorted(CERTAINTY_EDGES, sigmoid(own.certainty[chosen]), side="left")
    counts = np.zeros((len(FAMILIARITY_EDGES), len(CERTAINTY_EDGES)), np.int64)
    np.add.at(counts, (rows, columns), 1)
    return tuple(tuple(row) for row in counts.tolist())
