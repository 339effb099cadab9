"""The findings as results.json, results.md and cost.png, and the goals that they are judged by."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.serving.load import Result
from benchmarks.serving.picture import draw
from benchmarks.serving.rounds import Findings

BARE = "ONNX Runtime alone"
OURS = "confgate"
PEER_FACTOR, BARE_SHARE, CPU_LIMIT, LIVE_LIMIT_MS = 1.4, 0.9, 1.35, 100.0


@dataclass(frozen=True)
class Cell:
    """One server at one concurrency (or request size): medians over the rounds, and all errors."""

    images_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_per_1000: float
    resident_mb: float
    requests: int
    errors: int


def cells_of(results: Iterable[Result], key: Callable[[Result], int]) -> dict[int, Cell]:
    """One cell per value of `key`, in ascending order."""
    grouped: dict[int, list[Result]] = {}
    for result in results:
        grouped.setdefault(key(result), []).append(result)
    return {number: _cell(rounds) for number, rounds in sorted(grouped.items())}


def _cell(rounds: list[Result]) -> Cell:
    def median(value: Callable[[Result], float]) -> float:
        return statistics.median(value(result) for result in rounds)

    return Cell(
        images_per_second=median(lambda r: r.images_per_second),
        p50_ms=median(lambda r: r.p50_ms),
        p99_ms=median(lambda r: r.p99_ms),
        cpu_per_1000=median(lambda r: r.cpu_per_1000),
        resident_mb=median(lambda r: r.resident_mb),
        requests=sum(r.requests for r in rounds),
        errors=sum(r.errors for r in rounds),
    )


def bare_by_batch(findings: Findings, value: str) -> dict[int, float]:
    """The median of one figure of bare ONNX Runtime, by batch size."""
    grouped: dict[int, list[float]] = {}
    for row in findings.bare:
        grouped.setdefault(int(row["batch"]), []).append(row[value])
    return {batch: statistics.median(found) for batch, found in sorted(grouped.items())}


@dataclass(frozen=True)
class Goal:
    what: str
    found: str
    met: bool


def goals(findings: Findings) -> list[Goal]:
    """The goals that this run can judge; none unless confgate and at least one peer were measured."""
    tables = {name: cells_of(results, lambda r: r.concurrency) for name, results in findings.results.items()}
    ours = tables.pop(OURS, None)
    if not ours or not tables:
        return []
    judged = []
    for concurrency, cell in ours.items():
        _, peer = max((cells[concurrency].images_per_second, name) for name, cells in tables.items())
        factor = _median_ratio(findings, peer, concurrency)
        least = PEER_FACTOR if concurrency >= 8 else 1.0
        judged.append(
            Goal(
                f"≥ {least:g} × the best peer at {concurrency}" if least > 1 else f"first at {concurrency}",
                f"{factor:.2f} × {peer}",
                factor >= least and factor > 1,
            )
        )
        if concurrency == 1:
            fastest, peer = min((cells[concurrency].p50_ms, name) for name, cells in tables.items())
            judged.append(
                Goal("lowest p50 at 1", f"{cell.p50_ms:.2f} ms, {peer} {fastest:.2f} ms", cell.p50_ms < fastest)
            )
        if findings.shares.get(concurrency):
            share = statistics.median(findings.shares[concurrency])
            rounds = ", ".join(f"{one:.1%}" for one in findings.shares[concurrency])
            judged.append(
                Goal(
                    f"≥ {BARE_SHARE:.0%} of ONNX Runtime alone at {concurrency}",
                    f"{share:.1%} (rounds: {rounds})",
                    share >= BARE_SHARE,
                )
            )
    for concurrency, cell in ours.items():
        judged.append(
            Goal(
                f"≤ {CPU_LIMIT} s CPU per 1,000 images at {concurrency}",
                f"{cell.cpu_per_1000:.2f} s",
                cell.cpu_per_1000 <= CPU_LIMIT,
            )
        )
    if findings.live_ms:
        slow = percentile(findings.live_ms, 99)
        judged.append(
            Goal(
                f"/v2/health/live p99 ≤ {LIVE_LIMIT_MS:g} ms under saturation",
                f"{slow:.1f} ms (n = {len(findings.live_ms)}, {len(findings.live_failures)} failures)",
                slow <= LIVE_LIMIT_MS and not findings.live_failures,
            )
        )
    return judged


def _median_ratio(findings: Findings, peer: str, concurrency: int) -> float:
    """confgate's images/s divided by the peer's, turn by turn: the two of a turn were measured seconds apart."""
    ours, theirs = (
        [result.images_per_second for result in findings.results[name] if result.concurrency == concurrency]
        for name in (OURS, peer)
    )
    return statistics.median(a / max(b, 1e-9) for a, b in zip(ours, theirs, strict=False))


def percentile(values: list[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share / 100))]


def conditions(findings: Findings) -> dict[str, Any]:
    """The machine and the settings of the run."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?"
    )
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "onnxruntime_threads": findings.threads,
        "rounds": findings.rounds,
        "seconds": findings.seconds,
        "busy_before": findings.busy_before,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def markdown(findings: Findings) -> str:
    facts = conditions(findings)
    lines = [
        f"{facts['date']}, {facts['cpus']} cores of {facts['cpu']}, Python {facts['python']}; medians of "
        f"{facts['rounds']} turns of {facts['seconds']:g} s; "
        f"ONNX Runtime threads: {facts['onnxruntime_threads']}; "
        f"other programs used {facts['busy_before']:.0%} of the CPUs just before the run.",
        "",
        "| server | concurrency | requests/s | p50 ms | p99 ms | CPU s per 1,000 images | MB | errors | requests |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, results in findings.results.items():
        for concurrency, cell in cells_of(results, lambda r: r.concurrency).items():
            lines.append(
                f"| {name} | {concurrency} | {cell.images_per_second:,.0f} | {cell.p50_ms:.2f} | {cell.p99_ms:.2f} | "
                f"{cell.cpu_per_1000:.2f} | {cell.resident_mb:,.0f} | {cell.errors} | {cell.requests:,} |"
            )
    costs = bare_by_batch(findings, "cpu_per_1000")
    for batch, speed in bare_by_batch(findings, "images_per_second").items():
        lines.append(f"| {BARE}, batch {batch} | – | {speed:,.0f} | – | – | {costs[batch]:.2f} | – | – | – |")
    judged = goals(findings)
    if judged:
        lines += ["", "| goal | found | |", "|---|---|---|"]
        lines += [f"| {goal.what} | {goal.found} | {'met' if goal.met else '**not met**'} |" for goal in judged]
    if findings.request_sizes:
        lines += [
            "",
            "| confgate: images in one request | images/s | p50 ms | CPU s per 1,000 images |",
            "|---|---|---|---|",
        ]
        for size, cell in cells_of(findings.request_sizes, lambda r: r.images_per_request).items():
            lines.append(f"| {size} | {cell.images_per_second:,.0f} | {cell.p50_ms:.2f} | {cell.cpu_per_1000:.2f} |")
    lines += ["", "| server | version | ONNX Runtime | settings |", "|---|---|---|---|"]
    for name, about in findings.servers.items():
        settings = ", ".join(f"`{key}={value}`" for key, value in about["settings"].items())
        notes = "; ".join(part for part in (settings, about["note"]) if part)
        lines.append(f"| {name} | {about['version']} | {about['onnxruntime']} | {notes} |")
    lines += [f"\n{name} could not be measured: {why}" for name, why in findings.failures.items()]
    return "\n".join(lines) + "\n"


def write_report(findings: Findings, out: Path) -> str:
    """Writes the three files and returns the Markdown for the terminal."""
    out.mkdir(parents=True, exist_ok=True)
    document = {
        "conditions": conditions(findings),
        "servers": findings.servers,
        "failures": findings.failures,
        "results": {name: [r.as_json() for r in results] for name, results in findings.results.items()},
        "request_sizes": [r.as_json() for r in findings.request_sizes],
        "bare": findings.bare,
        "shares_of_bare": findings.shares,
        "live_p99_ms": percentile(findings.live_ms, 99) if findings.live_ms else None,
        "goals": [{"goal": g.what, "found": g.found, "met": g.met} for g in goals(findings)],
    }
    (out / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    text = markdown(findings)
    (out / "results.md").write_text(text)
    by_server = {name: cells_of(results, lambda r: r.concurrency) for name, results in findings.results.items()}
    by_size = cells_of(findings.request_sizes, lambda r: r.images_per_request)
    draw(
        out / "cost.png",
        {
            name: {c: (cell.images_per_second, cell.cpu_per_1000) for c, cell in t.items()}
            for name, t in by_server.items()
        },
        {size: (cell.images_per_second, cell.cpu_per_1000) for size, cell in by_size.items()},
        {
            batch: (speed, bare_by_batch(findings, "cpu_per_1000")[batch])
            for batch, speed in bare_by_batch(findings, "images_per_second").items()
        },
    )
    return f"{text}\nwritten to {out}: results.json, results.md, cost.png"
