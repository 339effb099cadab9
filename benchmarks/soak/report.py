"""The result of a soak: named findings, as Markdown and as JSON, and a chart of the memory."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from benchmarks.attacks.report import Budgets
from benchmarks.soak.traffic import LATE, SHED, Tally
from benchmarks.soak.watch import window_floors
from service.serving.budgets import bodies_megabytes, decoding_megabytes

WINDOW_SECONDS, GROWTH, LIVE_LIMIT_MS = 600.0, 0.05, 100.0
# In a shorter window the few large images that happen to be decoded in it decide.
MIN_WINDOW_SECONDS = 60.0


@dataclass
class Soak:
    """Everything that a soak recorded."""

    seconds: float
    tally: Tally
    memory: list[tuple[float, int]]
    idle_bytes: int
    live_ms: list[float]
    live_failures: list[str]
    exit_code: int = 0
    complaints: list[str] = field(default_factory=list)
    log_lines: int = 0


@dataclass(frozen=True)
class Finding:
    """One requirement, and whether it was met."""

    name: str
    met: bool
    detail: str


def judge(soak: Soak, timed: bool = True) -> list[Finding]:
    """All requirements; `timed` adds those that a machine busy with other work cannot show."""
    tally = soak.tally
    statuses = {status for counts in tally.by_kind.values() for status in counts}
    ours = sorted(status for status in statuses if status >= 500 and status != LATE)
    window = min(WINDOW_SECONDS, soak.seconds / 3)
    floors = window_floors(soak.memory, window) if window >= MIN_WINDOW_SECONDS else None
    growth = floors[1] / floors[0] - 1 if floors else 0.0
    peak = max((size for _, size in soak.memory), default=0)
    bound = Budgets(bodies_megabytes(0), decoding_megabytes(0)).bound(soak.idle_bytes)
    live = sorted(soak.live_ms)
    slow = live[min(len(live) - 1, int(0.99 * len(live)))] if live else 0.0
    unanswered = tally.sent - tally.answered - tally.left
    findings = [
        Finding("no unexpected 5xx", not ours, f"{ours or 'none'}; {SHED} and {LATE} are by design"),
        Finding(
            "one answer to each request",
            unanswered == 0,
            f"{tally.sent:,} sent, {tally.answered:,} answered, {tally.left:,} disconnected, {unanswered} neither",
        ),
        Finding("the correct answer to each", tally.violation_count == 0, f"{tally.violation_count} were wrong"),
        Finding(
            "no errors in the log", not soak.complaints, f"{len(soak.complaints)} errors in {soak.log_lines:,} lines"
        ),
        Finding("a clean exit", soak.exit_code == 0, f"exit code {soak.exit_code} after SIGTERM"),
    ]
    if not timed:
        return findings
    return [
        *findings,
        Finding(
            "memory is flat",
            floors is None or abs(growth) <= GROWTH,
            f"floor of the first {window:.0f} s {floors[0] / 1e6:.1f} MB, last {floors[1] / 1e6:.1f} MB ({growth:+.1%})"
            if floors
            else "too short to say",
        ),
        Finding(
            "memory is within its bound",
            peak <= bound,
            f"idle {soak.idle_bytes / 1e6:.0f} MB, at most {peak / 1e6:.0f} MB; the bound is {bound / 1e6:.0f} MB",
        ),
        Finding(
            f"live p99 ≤ {LIVE_LIMIT_MS:g} ms",
            slow <= LIVE_LIMIT_MS and not soak.live_failures,
            f"{slow:.1f} ms (n = {len(live)}, {len(soak.live_failures)} failures)",
        ),
    ]


def write_report(soak: Soak, findings: list[Finding], out: Path) -> str:
    """Writes the three files and returns the Markdown for the terminal."""
    out.mkdir(parents=True, exist_ok=True)
    tally = soak.tally
    lines = [
        f"{soak.seconds:,.0f} s, {tally.sent:,} requests, {tally.images:,} images of valid requests classified "
        f"({tally.images / soak.seconds:,.0f} per second).",
        "",
        "| requirement | met | found |",
        "|---|---|---|",
        *(f"| {f.name} | {'yes' if f.met else '**no**'} | {f.detail} |" for f in findings),
        "",
        "| kind of request | answers (0: the client disconnected) |",
        "|---|---|",
    ]
    for kind, counts in tally.by_kind.items():
        statuses_of_kind = ", ".join(f"{status} × {count:,}" for status, count in sorted(counts.items()))
        lines.append(f"| {kind} | {statuses_of_kind} |")
    lines += [
        "",
        *(f"- {violation}" for violation in tally.violations),
        *(f"- log: {line}" for line in soak.complaints),
    ]
    text = "\n".join(lines).rstrip() + "\n"
    (out / "report.md").write_text(text)
    document = {
        "seconds": soak.seconds,
        "findings": [vars(f) for f in findings],
        "by_kind": {kind: dict(counts) for kind, counts in tally.by_kind.items()},
        "violations": tally.violations,
        "memory": soak.memory,
    }
    (out / "report.json").write_text(json.dumps(document, indent=1) + "\n")
    if soak.memory:
        _draw(soak.memory, out / "memory.png")
    return f"{text}\nwritten to {out}: report.md, report.json, memory.png"


def _draw(memory: list[tuple[float, int]], path: Path) -> None:
    figure, axis = pyplot.subplots(figsize=(8, 3), layout="constrained")
    axis.plot([at / 60 for at, _ in memory], [size / 1e6 for _, size in memory], lw=1)
    axis.set(xlabel="minutes", ylabel="PSS of all processes, MB", ylim=(0, None))
    axis.grid(alpha=0.25)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
