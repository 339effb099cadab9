"""The table of `confgate-train calibrate`: every policy of every score, side by side."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Policy, Score
from service.model.scores import Outputs, ScoreName

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
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
