"""The goals that hold during any attack, and the outcomes as a Markdown table and as JSON."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.attacks.measure import HEALTH, LARGE, PHOTO, SMALL, Latency, Outcome

HEALTH_P99_MS, CLIENT_P95_MS = 100.0, 250.0
# Beside the budgets: the batches, the answers, and what the decoder itself needs.
SPARE_MEGABYTES = 300
SHARES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}
COLUMNS = (
    "attack",
    "sent",
    "answers to the attacker",
    "health p99 / max, ms",
    "small PNG p95 / max, ms",
    "400 × 400 PNG p95 / max, ms",
    "lost",
    "1200 × 900 JPEG p95 / max, ms; lost",
    "PSS idle / peak / bound, MB",
    "missed",
)


class Budgets(NamedTuple):
    """What the service may hold, in megabytes."""

    bodies: int
    decoding: int

    def bound(self, idle_bytes: int) -> float:
        """Bytes that the whole process tree may take."""
        return idle_bytes + 1e6 * (self.bodies + self.decoding + SPARE_MEGABYTES)


def missed(outcome: Outcome, budgets: Budgets) -> list[str]:
    """The goals that an outcome does not meet."""
    health, small, large = (outcome.others[name] for name in (HEALTH, SMALL, LARGE))
    checks = (
        (health.at(0.99) <= HEALTH_P99_MS, f"health p99 ≤ {HEALTH_P99_MS:g} ms"),
        (small.at(0.95) <= CLIENT_P95_MS, f"small PNG p95 ≤ {CLIENT_P95_MS:g} ms"),
        (large.at(0.95) <= CLIENT_P95_MS, f"400 × 400 PNG p95 ≤ {CLIENT_P95_MS:g} ms"),
        (not (health.lost or small.lost or large.lost), "none lost"),
        (outcome.peak_bytes <= budgets.bound(outcome.idle_bytes), "memory"),
    )
    return [name for met, name in checks if not met]


def counts(statuses: Counter[int]) -> str:
    """Statuses and how often each came; 0 is no answer."""
    return ", ".join(f"{status} × {count:,}" for status, count in sorted(statuses.items())) or "none"


def _times(found: Latency, share: float) -> str:
    return f"{found.at(share):,.0f} / {found.at(1.0):,.0f}" if found.milliseconds else "no answer"


def row(outcome: Outcome, budgets: Budgets) -> str:
    others = outcome.others
    with_goals = [others[name] for name in (HEALTH, SMALL, LARGE)]
    lost = sum((found.lost for found in with_goals), Counter[int]())
    requests = f"{sum(found.requests for found in with_goals):,}"
    idle, peak, bound = (
        f"{size / 1e6:,.0f}" for size in (outcome.idle_bytes, outcome.peak_bytes, budgets.bound(outcome.idle_bytes))
    )
    cells = (
        outcome.attack,
        outcome.phase,
        counts(outcome.statuses),
        _times(others[HEALTH], 0.99),
        _times(others[SMALL], 0.95),
        _times(others[LARGE], 0.95),
        f"{counts(lost)} of {requests}" if lost else f"0 of {requests}",
        f"{_times(others[PHOTO], 0.95)}; {others[PHOTO].lost.total()} of {others[PHOTO].requests}",
        f"{idle} / {peak} / {bound}",
        "; ".join(missed(outcome, budgets)) or "–",
    )
    return "| " + " | ".join(cells) + " |"


def heading() -> str:
    return "| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|"


def _finite(value: float) -> float | None:
    return round(value, 2) if math.isfinite(value) else None


def write(outcomes: Sequence[Outcome], budgets: Budgets, about: dict[str, Any], path: Path) -> None:
    """Writes everything as JSON."""
    rows = [
        {
            "attack": outcome.attack,
            "phase": outcome.phase,
            "attacker": dict(outcome.statuses),
            "others": {
                name: {
                    "requests": found.requests,
                    "lost": dict(found.lost),
                    **{label: _finite(found.at(share)) for label, share in SHARES.items()},
                }
                for name, found in outcome.others.items()
            },
            "idle_pss_mb": round(outcome.idle_bytes / 1e6, 1),
            "peak_pss_mb": round(outcome.peak_bytes / 1e6, 1),
            "bound_mb": round(budgets.bound(outcome.idle_bytes) / 1e6, 1),
            "cpu_seconds": round(outcome.cpu_seconds, 2),
            "missed": missed(outcome, budgets),
        }
        for outcome in outcomes
    ]
    path.write_text(json.dumps({**about, "budgets_mb": budgets._asdict(), "outcomes": rows}, indent=1) + "\n")
