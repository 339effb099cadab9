"""Policies as pairs of thresholds: is an image *familiar*, and is the model *certain* of its answer?

An image is refused as unfamiliar if its familiarity is at or below the first threshold, else as unsure if its certainty
is at or below the second, else it is accepted. A threshold of None refuses nothing. Both scores lie on their unbounded
scales, and a threshold lies midway between two observed scores, so equal scores are refused or accepted together.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.model.scores import Floats
from training.errors import DataError
from training.metrics.detection import detection_error, threshold_keeping
from training.metrics.intervals import upper_bound
from training.metrics.mixed_traffic import OOD_SHARE, wrong_among_accepted

Bools = NDArray[np.bool_]

EVEN_ODDS = 0.0  # the log-odds of ½
# What `foreign_only` keeps, and `balanced` at most as far as its budget reaches: the field's usual threshold.
FAMILIAR = 0.95
DIVISIONS = 41  # ways to divide a budget of refusals between the two thresholds, both ends included
# Shares refused along the path of `risk_pair`, from strict to loose; closer together at the loose end, where it ends.
PATH = tuple((step / 20) ** 2 for step in range(19, -1, -1))


@dataclass(frozen=True)
class PairScores:
    """Both scores of the same images, and whether they were classified correctly: None for proxies and unlabelled."""

    familiarity: Floats
    certainty: Floats
    right: Bools | None = None

    def __post_init__(self) -> None:
        n = len(self.familiarity)
        if not n or len(self.certainty) != n or (self.right is not None and len(self.right) != n):
            raise ValueError(
                f"{n} familiarities, {len(self.certainty)} certainties and "
                f"{'no' if self.right is None else len(self.right)} answers: expected as many of each, and at least one"
            )
        if not (np.isfinite(self.familiarity).all() and np.isfinite(self.certainty).all()):
            raise ValueError("the scores hold NaN or infinity: expected finite numbers")

    def __len__(self) -> int:
        return len(self.familiarity)

    def take(self, which: NDArray[np.int64]) -> "PairScores":
        """The images with these indices, in this order."""
        right = None if self.right is None else self.right[which]
        return PairScores(self.familiarity[which], self.certainty[which], right)


@dataclass(frozen=True)
class Pair:
    """Two thresholds, and how they were chosen."""

    familiarity: float | None
    certainty: float | None
    how: str


class Refusals(NamedTuple):
    """Which images are refused as unfamiliar, and which of the others as unsure."""

    unfamiliar: Bools
    unsure: Bools

    @property
    def any(self) -> Bools:
        return self.unfamiliar | self.unsure


def as_often(proxies: PairScores, ood: Mapping[str, PairScores]) -> PairScores:
    """The proxies and images of the user's own sets; each set counts as much as the proxies, however large it is."""
    n = len(proxies)
    each = [scores.take(np.linspace(0, len(scores), n, endpoint=False).astype(np.int64)) for scores in ood.values()]
    return PairScores(
        np.concatenate([proxies.familiarity, *(scores.familiarity for scores in each)]),
        np.concatenate([proxies.certainty, *(scores.certainty for scores in each)]),
    )


def refusals(pair: Pair, scores: PairScores) -> Refusals:
    """What a pair refuses, and why."""
    none = np.zeros(len(scores), np.bool_)
    unfamiliar = none if pair.familiarity is None else scores.familiarity <= pair.familiarity
    unsure = none if pair.certainty is None else ~unfamiliar & (scores.certainty <= pair.certainty)
    return Refusals(unfamiliar, unsure)


def accepted_by(pair: Pair, scores: PairScores) -> Bools:
    return ~refusals(pair, scores).any


def wrong_among_accepted_by(pair: Pair, calibration: PairScores, proxies: PairScores | None) -> float | None:
    """On traffic of 80 % calibration images and 20 % proxies; unlabelled images count as correctly classified.

    Without proxies, on calibration images alone. None if nothing is accepted.
    """
    right = np.ones(len(calibration), np.bool_) if calibration.right is None else calibration.right
    ood = np.zeros(0, np.bool_) if proxies is None else accepted_by(pair, proxies)
    return wrong_among_accepted(accepted_by(pair, calibration), right, ood, 0.0 if proxies is None else OOD_SHARE)


def is_worse_than_accepting_all(pair: Pair, calibration: PairScores, proxies: PairScores | None) -> bool:
    """Whether more of the accepted answers are wrong than without a gate; so is a gate that accepts nothing."""
    gated = wrong_among_accepted_by(pair, calibration, proxies)
    ungated = wrong_among_accepted_by(accept_all_pair(), calibration, proxies)
    return gated is None or (ungated is not None and gated > ungated)


def accept_all_pair(why_default: str | None = None) -> Pair:
    """Refuses nothing. `why_default` stays in the bundle, because a gate that refuses nothing must explain itself."""
    return Pair(None, None, "refuses nothing" + ("" if why_default is None else f". {why_default}"))


def foreign_only_pair(calibration: PairScores, keep: float = FAMILIAR) -> Pair:
    """Familiarity alone, which keeps a share `keep` of the calibration images."""
    if not 0 < keep < 1:
        raise DataError(f"the share of images to keep is {keep:g}, expected one between 0 and 1, such as 0.95.")
    threshold = _refusing_something(threshold_keeping(keep, calibration.familiarity), calibration.familiarity)
    how = f"familiarity alone keeps {keep:.0%} of {len(calibration)} in-distribution calibration images"
    if threshold is None:
        how += "; no threshold refuses so few of them, so none is refused"
    return Pair(threshold, None, how)


def ood_holdout_pair(calibration: PairScores, ood: Mapping[str, PairScores]) -> Pair:
    """Familiarity alone, of least detection error between calibration images and held-out OOD images."""
    if not ood:
        raise DataError("policy 'ood_holdout' needs out-of-distribution images. Name a set with --ood.")
    others = np.concatenate([scores.familiarity for scores in ood.values()])
    best = detection_error(calibration.familiarity, others)
    sets = ", ".join(f"{name} ({len(scores)})" for name, scores in ood.items())
    return Pair(
        _refusing_something(best.value, np.concatenate([calibration.familiarity, others])),
        None,
        f"familiarity of least detection error ({best.detection_error:.2%}) between {len(calibration)} calibration "
        f"images and images of {sets}",
    )


def balanced_pair(
    calibration: PairScores,
    proxies: PairScores,
    half_a: PairScores | None = None,
    limit: float = 0.10,
    alpha: float = 0.05,
    foreign: str = "OOD proxies",
) -> Pair:
    """Refuses up to a share `limit` of own images, divided so that the fewest accepted answers are wrong.

    The Clopper–Pearson bound of both refusals together, on the calibration images, is at most `limit`. Familiarity
    refuses at least 5 % of them, or the whole budget where it is less: proxies are easier to tell apart than what will
    come, and with few images chance decides the division. Of the ways to divide the rest, that with the fewest wrong
    answers among the accepted images of 80 % calibration images and 20 % proxies is taken. An answer that is more
    likely wrong than right is not accepted: the certainty threshold is at least ½, unless that alone would take half
    of the budget. `foreign` says what the proxies are.

    The division is chosen on `half_a`. Chosen on all calibration images, it broke the bound in 9 % instead of 5 % of
    2,000 simulated draws of 600 images; on half of them, in 6 %.
    """
    if not 0 < limit < 1 or not 0 < alpha < 1:
        raise DataError(f"limit is {limit:g} and alpha {alpha:g}, expected both between 0 and 1.")
    n = len(calibration)
    budget = bisect_right(range(n + 1), limit, key=lambda k: upper_bound(k, n, alpha)) - 1
    if budget < 1:
        verdict = "even none refused" if budget < 0 else "a single one refused"
        enough = bisect_left(range(10**9), True, lo=n, key=lambda m: upper_bound(1, m, alpha) <= limit)
        return Pair(
            None,
            None,
            f"refuses nothing: {verdict} of {n} calibration images has an upper bound above {limit:.2%} "
            f"(at {1 - alpha:g}); it takes at least {enough} calibration images",
        )
    on = calibration if half_a is None else half_a
    budget_of_half = budget * len(on) // n
    least = min(budget_of_half, _unfamiliar_at_least(len(on)))
    cuts = {least + (budget_of_half - least) * division // (DIVISIONS - 1) for division in range(DIVISIONS)}
    floor = EVEN_ODDS if np.sum(calibration.certainty <= EVEN_ODDS) <= budget / 2 else None
    divided = _best_division(budget_of_half, _refusing_each(cuts, on.familiarity), on, proxies, floor)
    by_familiarity = round(int(refusals(divided, on).unfamiliar.sum()) * budget / max(1, budget_of_half))
    by_familiarity = min(budget, max(by_familiarity, _unfamiliar_at_least(n)))
    familiarity = _refusing_at_most(by_familiarity, calibration.familiarity)
    found = _using_up(budget, familiarity, calibration, floor)
    unfamiliar, unsure = (int(part.sum()) for part in refusals(found, calibration))
    wrong = f"{foreign} alone" if calibration.right is None else f"misclassified images and {foreign}"
    return Pair(
        found.familiarity,
        found.certainty,
        f"refuses {unfamiliar} of {n} calibration images as unfamiliar and {unsure} as unsure, a share whose upper "
        f"bound (at {1 - alpha:g}) is at most {limit:.2%}; what familiarity leaves after its {1 - FAMILIAR:.0%} is "
        f"divided so that the fewest accepted answers are wrong on {1 - OOD_SHARE:.0%} calibration images and "
        f"{OOD_SHARE:.0%} {foreign} ({wrong} count as wrong)",
    )


def _unfamiliar_at_least(n: int) -> int:
    """How many of `n` own images familiarity refuses, where the budget reaches so far."""
    return math.floor((1 - FAMILIAR) * n + 1e-9)


def target_rejection_pair(traffic: PairScores, rate: float, unfamiliar: float, unsure: float) -> Pair:
    """Refuses a share `rate` of unlabelled images, divided between the reasons as `unfamiliar` to `unsure`."""
    if not 0 < rate < 1:
        raise DataError(f"--target-rejection is {rate:g}, expected a share between 0 and 1, such as 0.1.")
    budget = math.floor(rate * len(traffic) + 1e-9)
    share = unfamiliar / (unfamiliar + unsure) if unfamiliar + unsure else 0.5
    familiarity = _refusing_at_most(round(budget * share), traffic.familiarity)
    pair = _using_up(budget, familiarity, traffic)
    how = f"refuses {rate:.2%} of {len(traffic)} unlabelled images of the user's traffic"
    return Pair(pair.familiarity, pair.certainty, how)


def risk_pair(
    half_a: PairScores, half_b: PairScores, risk: float, alpha: float = 0.05, proxies: PairScores | None = None
) -> Pair:
    """At most a share `risk` of accepted answers is wrong, with probability 1 − α, for images like the calibration's.

    Fixed-sequence testing (Angelopoulos et al. 2021, Learn then Test). A path of pairs from strict to loose is made on
    half A, and starts where half A gives the strongest evidence. Along it, the exact binomial test of "more than `risk`
    are wrong" is made on half B at level α, until it fails for the first time; the last pair that passed is returned.
    A broken promise takes a test that passes at the first pair on the path that is too loose, and that pair is fixed
    before half B is seen: one test at level α, however long the path.
    """
    from scipy.stats import binom

    if not 0 < risk < 1 or not 0 < alpha < 1:
        raise DataError(f"risk is {risk:g} and alpha {alpha:g}, expected both between 0 and 1.")
    if half_a.right is None or half_b.right is None:
        raise DataError(
            "the pair 'risk': only labels tell which images are misclassified. Use labelled calibration images."
        )
    path = risk_path(half_a, proxies)
    wrong_a, accepted_a = np.transpose([_mistakes(pair, half_a) for pair in path])
    start = int(np.argmin(binom.logcdf(wrong_a, accepted_a, risk)))  # logs: p-values near 0 would all be equal
    found: Pair | None = None
    for pair in path[start:]:
        if binom.cdf(*_mistakes(pair, half_b), risk) > alpha:
            break
        found = pair
    if found is None:
        needed = math.ceil(math.log(alpha) / math.log1p(-risk))
        raise DataError(
            f"the pair 'risk': {len(half_b)} calibration images to test on, {int((~half_b.right).sum())} of them "
            f"misclassified, cannot promise at most {risk:.2%} wrong answers with probability {1 - alpha:g}. It takes "
            f"at least {needed} accepted images without a mistake. Use more calibration images, or a higher --risk."
        )
    wrong, accepted = _mistakes(found, half_b)
    return Pair(
        found.familiarity,
        found.certainty,
        f"at most {risk:.2%} of accepted answers are wrong, with probability {1 - alpha:g} over the calibration images "
        f"({wrong} of {accepted} accepted ones of {len(half_b)} were, on which thresholds from {len(half_a)} others "
        "were tested); promised only for images drawn like them",
    )


def risk_path(half_a: PairScores, proxies: PairScores | None) -> list[Pair]:
    """From strict to loose: for each share of PATH to refuse, its division with the fewest wrong among accepted."""
    budgets = [math.floor(share * len(half_a)) for share in PATH]
    cuts = _refusing_each(set(budgets), half_a.familiarity)
    return [_best_division(budget, cuts, half_a, proxies) for budget in budgets]


def _mistakes(pair: Pair, scores: PairScores) -> tuple[int, int]:
    """Wrong and accepted images."""
    assert scores.right is not None
    accepted = accepted_by(pair, scores)
    return int((accepted & ~scores.right).sum()), int(accepted.sum())


def _best_division(
    budget: int,
    cuts: Mapping[int, float | None],
    calibration: PairScores,
    proxies: PairScores | None,
    floor: float | None = None,
) -> Pair:
    """Of the pairs that refuse at most `budget`, as many of them by familiarity as a cut says: that of least risk.

    Pairs whose certainty threshold is at least `floor` come first. Among equally good ones the one that refuses the
    fewest calibration images is taken.
    """

    def cost(pair: Pair) -> tuple[bool, float, int]:
        wrong = wrong_among_accepted_by(pair, calibration, proxies)
        below = floor is not None and (pair.certainty is None or pair.certainty < floor)
        return below, (1.0 if wrong is None else wrong), -int(accepted_by(pair, calibration).sum())

    return min(
        (_using_up(budget, threshold, calibration, floor) for cut, threshold in cuts.items() if cut <= budget), key=cost
    )


def _using_up(budget: int, familiarity: float | None, calibration: PairScores, floor: float | None = None) -> Pair:
    """Refuses by certainty as many of the familiar images as those that are not familiar leave of the budget."""
    familiar = accepted_by(Pair(familiarity, None, ""), calibration)
    left, values = budget - int((~familiar).sum()), calibration.certainty[familiar]
    certainty = _refusing_at_most(left, values)
    if floor is not None and np.sum(values <= floor) <= left:
        certainty = floor if certainty is None else max(certainty, floor)
    return Pair(familiarity, certainty, "")


def _refusing_each(counts: set[int], scores: Floats) -> dict[int, float | None]:
    return {count: _refusing_at_most(count, scores) for count in sorted(counts)}


def _refusing_at_most(count: int, scores: Floats) -> float | None:
    """The highest threshold that refuses at most `count` of the scores, and not all; None if it would refuse none."""
    return _refusing_something(threshold_keeping(1 - count / len(scores), scores), scores)


def _refusing_something(threshold: float, scores: Floats) -> float | None:
    return threshold if (scores <= threshold).any() else None
