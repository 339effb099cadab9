"""The tables of `confgate-train calibrate`: every pair, and every policy of every score, side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Policy, Score
from service.model.pairs import PairPolicy, Pairs
from service.model.scores import Outputs, ScoreName
from training.calibration.pair_policies import Pair, refusals
from training.calibration.pairs import pair_scores

MISSING = "–"


@dataclass(frozen=True)
class PolicyRow:
    score: ScoreName
    policy: str
    threshold: float  # as it is shown in answers
    rejected: Policy  # its expected rejection rate, interval and n
    caught: dict[str, float] = field(default_factory=dict)  # share of each OOD set that is refused
    accepted_accuracy: float | None = None  # None: nothing is accepted, or no labels are known


def policy_rows(
    scores: Mapping[ScoreName, Score],
    in_distribution: Outputs | None = None,
    right: NDArray[np.bool_] | None = None,
    ood: Mapping[str, Outputs] | None = None,
) -> list[PolicyRow]:
    """One row for each policy; unknown values stay None."""
    rows = []
    for name, score in scores.items():
        values = None if in_distribution is None else score.of_images(name, in_distribution)
        others = {data: score.of_images(name, outputs) for data, outputs in (ood or {}).items()}
        for policy_name, policy in score.policies.items():
            kept = None if values is None else values > policy.threshold
            rows.append(
                PolicyRow(
                    name,
                    policy_name,
                    float(score.shown(policy.threshold)),
                    policy,
                    {data: float(np.mean(column <= policy.threshold)) for data, column in others.items()},
                    None if kept is None or right is None or not kept.any() else float(right[kept].mean()),
                )
            )
    return rows


@dataclass(frozen=True)
class PairRow:
    policy: str
    familiarity: float  # both thresholds as they are shown in answers; 0 refuses nothing
    certainty: float
    expected: PairPolicy
    caught: dict[str, float] = field(default_factory=dict)  # share of each OOD set that is refused
    accepted_accuracy: float | None = None


def pair_rows(
    scores: Mapping[ScoreName, Score],
    pairs: Pairs,
    in_distribution: Outputs | None = None,
    right: NDArray[np.bool_] | None = None,
    ood: Mapping[str, Outputs] | None = None,
) -> list[PairRow]:
    """One row for each pair; unknown values stay None."""
    own = None if in_distribution is None else pair_scores(scores, in_distribution)
    others = {data: pair_scores(scores, outputs) for data, outputs in (ood or {}).items()}
    rows = []
    for name, policy in pairs.policies.items():
        pair = Pair(policy.familiarity, policy.certainty, policy.how)
        kept = None if own is None else ~refusals(pair, own).any
        rows.append(
            PairRow(
                name,
                _shown(scores["typicality"], policy.familiarity),
                _shown(scores["certainty"], policy.certainty),
                policy,
                {data: float(refusals(pair, theirs).any.mean()) for data, theirs in others.items()},
                None if kept is None or right is None or not kept.any() else float(right[kept].mean()),
            )
        )
    return rows


def _shown(score: Score, threshold: float | None) -> float:
    return 0.0 if threshold is None else float(score.shown(threshold))


def pairs_as_text(rows: list[PairRow]) -> str:
    """Aligned columns, for a terminal or a pipe."""
    sets = list(dict.fromkeys(data for row in rows for data in row.caught))
    caught = (f"caught: {data}" for data in sets)
    refused = ("refused", "(95 % interval)", "unfamiliar", "unsure", "n")
    lines = [("policy", "familiarity >", "certainty >", *refused, *caught, "accuracy of accepted")]
    for row in rows:
        expected = row.expected.expected
        low, high = expected.total.interval
        lines.append(
            (
                row.policy,
                f"{row.familiarity:.4f}",
                f"{row.certainty:.4f}",
                f"{expected.total.rate:.2%}",
                f"{low:.2%} to {high:.2%}",
                f"{expected.unfamiliar.rate:.2%}",
                f"{expected.unsure.rate:.2%}",
                f"{row.expected.n:,}",
                *(f"{row.caught[data]:.2%}" if data in row.caught else MISSING for data in sets),
                MISSING if row.accepted_accuracy is None else f"{row.accepted_accuracy:.2%}",
            )
        )
    return aligned(lines)


def as_text(rows: list[PolicyRow]) -> str:
    """Aligned columns, for a terminal or a pipe."""
    sets = list(dict.fromkeys(data for row in rows for data in row.caught))
    caught = (f"caught: {data}" for data in sets)
    lines = [("score", "policy", "threshold", "refused", "(95 % interval)", "n", *caught, "accuracy of accepted")]
    for row in rows:
        interval = row.rejected.expected_rejection_interval
        lines.append(
            (
                row.score,
                row.policy,
                f"{row.threshold:.4f}",
                f"{row.rejected.expected_rejection_rate:.2%}",
                MISSING if interval is None else f"{interval[0]:.2%} to {interval[1]:.2%}",
                f"{row.rejected.n:,}",
                *(f"{row.caught[data]:.2%}" if data in row.caught else MISSING for data in sets),
                MISSING if row.accepted_accuracy is None else f"{row.accepted_accuracy:.2%}",
            )
        )
    return aligned(lines)


def aligned(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
