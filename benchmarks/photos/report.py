"""The records of a run as results.json, results.md and photos.png, with the goals and whether they are met."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.photos.plan import LIMIT, PHOTOS, Record, Records
from benchmarks.serving.picture import draw_photos
from benchmarks.serving.report import Goal, percentile
from benchmarks.serving.servers import ROOT

OURS = "confgate"
PEER_FACTOR, LIMIT_SHARE = 1.25, 0.92
# Fewer latencies have no 99.9th percentile: it would be the largest.
LEAST_FOR_P999 = 1000


@dataclass(frozen=True)
class Closed:
    """One server, one photo, one concurrency: medians over the rounds."""

    images_per_second: float
    lowest: float
    highest: float
    p50_ms: float
    p99_ms: float
    cpu_per_1000: float
    client_cpu_per_1000: float
    pss_mb: float
    images: int
    errors: int
    rounds: int
    share_of_limit: float | None  # median over the rounds of both in the same round


@dataclass(frozen=True)
class Open:
    """One server, one photo, one share of its capacity: medians over the rounds, and p99.9 of all their latencies."""

    rate: float
    p50_ms: float
    p99_ms: float
    p999_ms: float | None
    max_ms: float
    lag_p99_ms: float
    cpu_per_1000: float
    client_cpu_per_1000: float
    answered: int
    errors: int
    rounds: int


@dataclass(frozen=True)
class Started:
    """What one server needs: medians over its starts, and its memory under load."""

    ready_seconds: float
    starts: int
    fresh_mb: float
    most_mb: float
    processes: int


Findings = dict[str, Any]
Table = dict[str, dict[str, dict[int, Any]]]  # photo → server → concurrency or share → Closed or Open


def closed_table(records: Records) -> Table:
    grouped = _grouped((r["photo"], r["server"], r["concurrency"], r) for r in closed_turns(records))
    table: Table = {}
    for photo, tables in grouped.items():
        limits = tables.pop(LIMIT, {})
        cells = {
            server: {at: _closed(rounds, limits.get(at, ())) for at, rounds in sorted(by_concurrency.items())}
            for server, by_concurrency in tables.items()
        }
        if limits:
            cells[LIMIT] = {at: _closed(rounds, ()) for at, rounds in sorted(limits.items())}
        table[photo] = cells
    return table


def closed_turns(records: Records) -> list[Record]:
    return [record for record in records.of("turn") if record["concurrency"] is not None]


def _grouped(rows: Iterable[tuple[str, str, int, Record]]) -> dict[str, dict[str, dict[int, list[Record]]]]:
    found: dict[str, dict[str, dict[int, list[Record]]]] = {}
    for photo, server, at, record in rows:
        found.setdefault(photo, {}).setdefault(server, {}).setdefault(at, []).append(record)
    return found


def _closed(rounds: Sequence[Record], limits: Sequence[Record]) -> Closed:
    def median(value: Callable[[Record], float]) -> float:
        return statistics.median(value(record) for record in rounds)

    speeds = [record["images_per_second"] for record in rounds]
    return Closed(
        images_per_second=statistics.median(speeds),
        lowest=min(speeds),
        highest=max(speeds),
        p50_ms=median(lambda r: r["p50_ms"]),
        p99_ms=median(lambda r: r["p99_ms"]),
        cpu_per_1000=median(lambda r: 1000 * r["cpu_seconds"] / max(1, r["images"])),
        client_cpu_per_1000=median(lambda r: 1000 * r.get("client_cpu_seconds", 0) / max(1, r["images"])),
        pss_mb=median(lambda r: r["pss_mb"] or float("nan")),
        images=sum(r["images"] for r in rounds),
        errors=sum(r.get("errors", 0) for r in rounds),
        rounds=len(rounds),
        share_of_limit=median_ratio(rounds, limits),
    )


def median_ratio(ours: Iterable[Record], theirs: Iterable[Record]) -> float | None:
    """Images/s of one divided by the other's in the same round, the median over the rounds that both have."""
    other = {record["round"]: record["images_per_second"] for record in theirs}
    ratios = [r["images_per_second"] / max(other[r["round"]], 1e-9) for r in ours if r["round"] in other]
    return statistics.median(ratios) if ratios else None


def open_table(records: Records) -> Table:
    grouped = _grouped(
        (r["photo"], r["server"], load["share"], load) for r in records.of("turn") for load in r.get("loads", ())
    )
    return {
        photo: {
            server: {share: _open(loads) for share, loads in sorted(by_share.items())}
            for server, by_share in tables.items()
        }
        for photo, tables in grouped.items()
    }


def _open(loads: Sequence[Record]) -> Open:
    # A request without an answer took longer than any other.
    latencies = [[*load["latencies_ms"], *[float("inf")] * load["errors"]] for load in loads]
    everything = [latency for one in latencies for latency in one]

    def median(value: Callable[[Record], float]) -> float:
        return statistics.median(value(load) for load in loads)

    return Open(
        rate=median(lambda load: load["rate"]),
        p50_ms=statistics.median(percentile(one, 50) for one in latencies),
        p99_ms=statistics.median(percentile(one, 99) for one in latencies),
        p999_ms=percentile(everything, 99.9) if len(everything) >= LEAST_FOR_P999 else None,
        max_ms=max(everything),
        lag_p99_ms=median(lambda load: load["lag_p99_ms"]),
        cpu_per_1000=median(lambda load: 1000 * load["cpu_seconds"] / max(1, load["sent"])),
        client_cpu_per_1000=median(lambda load: 1000 * load["client_cpu_seconds"] / max(1, load["sent"])),
        answered=sum(len(load["latencies_ms"]) for load in loads),
        errors=sum(load["errors"] for load in loads),
        rounds=len(loads),
    )


def start_table(records: Records) -> dict[str, Started]:
    """Of each server, its starts with the settings that it was measured with, the last ones."""
    found = {}
    for server in dict.fromkeys(record["server"] for record in records.of("start")):
        of_server = [record for record in records.of("start") if record["server"] == server]
        starts = [record for record in of_server if record["settings"] == of_server[-1]["settings"]]
        loaded = [r["pss_mb"] for r in records.of("turn") if r["server"] == server and r.get("pss_mb")]
        found[server] = Started(
            ready_seconds=statistics.median(record["seconds"] for record in starts),
            starts=len(starts),
            fresh_mb=statistics.median(record["pss_mb"] for record in starts),
            most_mb=max(loaded, default=float("nan")),
            processes=starts[-1]["processes"],
        )
    return found


def goals(records: Records) -> list[Goal]:
    """The goals that the records can judge; none unless confgate and at least one peer were measured."""
    judged: list[Goal] = []
    for photo, tables in closed_table(records).items():
        peers = {name: cells for name, cells in tables.items() if name not in (OURS, LIMIT)}
        for concurrency, ours in tables.get(OURS, {}).items():
            rivals = [(c[concurrency].images_per_second, name) for name, c in peers.items() if concurrency in c]
            if rivals:
                _, best = max(rivals)
                least = PEER_FACTOR if concurrency in (8, 32) else 1.0
                factor = median_ratio(*(_turns(records, photo, concurrency, name) for name in (OURS, best))) or 0.0
                what = f"≥ {least:g} × the best other" if least > 1 else "first"
                judged.append(Goal(f"{photo}: {what} at {concurrency}", f"{factor:.2f} × {best}", factor >= least))
            if ours.share_of_limit is not None and concurrency >= 8:
                share = ours.share_of_limit
                judged.append(
                    Goal(
                        f"{photo}: ≥ {LIMIT_SHARE:.0%} of the limit at {concurrency}",
                        f"{share:.1%}",
                        share >= LIMIT_SHARE,
                    )
                )
    for photo, tables in open_table(records).items():
        for share_of_capacity, cell in tables.get(OURS, {}).items():
            slowest = [
                (c[share_of_capacity].p99_ms, name)
                for name, c in tables.items()
                if name != OURS and share_of_capacity in c
            ]
            if slowest:
                p99, name = min(slowest)
                judged.append(
                    Goal(
                        f"{photo}: lowest p99 at {share_of_capacity} % of its capacity",
                        f"{cell.p99_ms:.1f} ms, {name} {p99:.1f} ms",
                        cell.p99_ms <= p99,
                    )
                )
    memory = {name: started.most_mb for name, started in start_table(records).items()}
    ours_mb = memory.pop(OURS, None)
    measured = [(most, name) for name, most in memory.items() if most == most]
    if ours_mb is not None and measured:
        least_mb, name = min(measured)
        judged.append(
            Goal("least memory under load", f"{ours_mb:.0f} MB, {name} {least_mb:.0f} MB", ours_mb <= least_mb)
        )
    return judged


def _turns(records: Records, photo: str, concurrency: int, server: str) -> list[Record]:
    return [
        r for r in records.of("turn") if (r["photo"], r["concurrency"], r["server"]) == (photo, concurrency, server)
    ]


def conditions(records: Records) -> dict[str, Any]:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "?",
    )
    settings = records.of("settings")[0]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "cpu": cpu,
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "rounds": max((record["round"] + 1 for record in records.of("turn")), default=0),
        **{key: value for key, value in settings.items() if key != "kind"},
    }


def markdown(records: Records) -> str:
    facts = conditions(records)
    sizes = ", ".join(f"{name} {size:,} bytes" for name, size in facts["bytes"].items())
    lines = [
        f"{facts['date']}, {facts['cpus']} cores of {facts['cpu']}, Python {facts['python']}, {facts['bundle']}; "
        f"photos: {sizes}; medians of up to {facts['rounds']} turns, of {facts['seconds']} s in the closed and "
        f"{facts['open_seconds']} s in the open loop (12mp: three times and twice that). "
        "The load generators run on the same cores.",
    ]
    for photo, tables in closed_table(records).items():
        lines += [
            f"\n**Closed loop, {photo}**\n",
            "| server | requests at once | images/s (lowest to highest turn) | of the limit | p50 ms | p99 ms | "
            "CPU s per 1,000 images | wrk's | MB | images | errors |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for name, cells in tables.items():
            for concurrency, cell in cells.items():
                share = "–" if cell.share_of_limit is None else f"{cell.share_of_limit:.1%}"
                lines.append(
                    f"| {name} | {'beside ' if name == LIMIT else ''}{concurrency} | {cell.images_per_second:.1f} "
                    f"({cell.lowest:.1f} to {cell.highest:.1f}) | {share} | {cell.p50_ms:.1f} | "
                    f"{cell.p99_ms:.1f} | {cell.cpu_per_1000:.2f} | {cell.client_cpu_per_1000:.2f} | "
                    f"{cell.pss_mb:,.0f} | {cell.images:,} | "
                    f"{cell.errors} |"
                )
    for photo, tables in open_table(records).items():
        lines += [
            f"\n**Open loop, {photo}**: latency from the intended arrival\n",
            "| server | of its capacity | requests/s | p50 ms | p99 ms | p99.9 ms | longest ms | "
            "generator's lag p99 ms | CPU s per 1,000 images | generator's | answers | errors |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for name, cells in tables.items():
            for share_of_capacity, cell in cells.items():
                tail = "–" if cell.p999_ms is None else f"{cell.p999_ms:.1f}"
                lines.append(
                    f"| {name} | {share_of_capacity} % | {cell.rate:.1f} | {cell.p50_ms:.1f} | "
                    f"{cell.p99_ms:.1f} | {tail} | {cell.max_ms:.1f} | {cell.lag_p99_ms:.1f} | "
                    f"{cell.cpu_per_1000:.2f} | "
                    f"{cell.client_cpu_per_1000:.2f} | {cell.answered:,} | {cell.errors} |"
                )
    about = {record["server"]: record for record in records.of("about")}
    used = {record["server"]: record["settings"] for record in records.of("start")}
    lines += [
        "\n| server | version | start to ready s | MB at first | most MB under load | processes | settings |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, started in start_table(records).items():
        listed = ", ".join(f"`{key}={value}`" for key, value in used[name].items())
        notes = "; ".join(part for part in (listed, about[name]["note"]) if part)
        lines.append(
            f"| {name} | {about[name]['version']} | {started.ready_seconds:.1f} (n = {started.starts}) | "
            f"{started.fresh_mb:,.0f} | {started.most_mb:,.0f} | {started.processes} | {notes} |"
        )
    judged = goals(records)
    if judged:
        lines += ["\n| goal | found | |", "|---|---|---|"]
        lines += [f"| {goal.what} | {goal.found} | {'met' if goal.met else '**not met**'} |" for goal in judged]
    for record in records.of("failure"):
        lines.append(f"\n{record['server']} failed once: {record['why'].strip()}")
    return "\n".join(lines) + "\n"


def write_report(out: Path) -> str:
    """Writes the three files and returns the Markdown for the terminal."""
    records = Records(out / "records.jsonl")
    if not records.of("turn"):
        return f"{out} has no turn on record yet"
    closed, opened = closed_table(records), open_table(records)
    plain = {
        "conditions": conditions(records),
        "about": {record["server"]: record for record in records.of("about")},
        "starts": {name: asdict(started) for name, started in start_table(records).items()},
        "closed": _plain(closed),
        "open": _plain(opened),
        "tuned": records.of("tuned"),
        "goals": [asdict(goal) for goal in goals(records)],
        "failures": records.of("failure"),
    }
    (out / "results.json").write_text(json.dumps(plain, indent=1) + "\n")
    text = markdown(records)
    (out / "results.md").write_text(text)
    draw_photos(
        out / "photos.png",
        [photo.name for photo in PHOTOS if photo.name in closed],
        {
            photo: {
                name: {at: (cell.images_per_second, cell.cpu_per_1000) for at, cell in cells.items()}
                for name, cells in tables.items()
            }
            for photo, tables in closed.items()
        },
        {
            photo: {name: {at: cell.p99_ms for at, cell in cells.items()} for name, cells in tables.items()}
            for photo, tables in opened.items()
        },
        LIMIT,
    )
    return f"{text}\nwritten to {out}: results.json, results.md, photos.png"


def _plain(table: Table) -> dict[str, Any]:
    return {
        photo: {name: {str(at): asdict(cell) for at, cell in cells.items()} for name, cells in tables.items()}
        for photo, tables in table.items()
    }
