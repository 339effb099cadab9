"""confgate compared with other model servers on photos, every server with all CPUs: `make bench-photos`.

    python -m benchmarks.photos [--rounds 3] [--seconds 4] [--servers NAME …] [--minutes 4] [--out .bench/photos]

First the settings of each peer are tried and the best kept. Then all servers are started, and their answers checked. In
each round, for each photo and each load, one server after another takes its turn: wrk in a closed loop at 1, 8, 32 and
128 requests at once, beside it the limit (bare processes with ONNX Runtime), then an open loop: Poisson arrivals at
50, 70 and 90 % of the server's own capacity. Every turn is written to OUT/records.jsonl at once. The same command goes
on where it was ended; with --minutes it ends by itself after the turn in which they are over, with exit code 3.
Writes results.json, results.md and photos.png.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from benchmarks.photos.plan import LIMIT, PHOTOS, turns
from benchmarks.photos.run import Run
from benchmarks.photos.servers import servers
from benchmarks.serving.environments import InstallError
from benchmarks.serving.load import LoadError
from benchmarks.serving.servers import ROOT

MANIFEST = "bundle.json"
CLOTHING = ROOT / "models" / "clothing"


def shipped_bundle() -> Path | None:
    """The highest version of models/clothing."""
    versions = [folder for folder in CLOTHING.glob("*") if folder.name.isdigit()]
    return max(versions, key=lambda folder: int(folder.name), default=None)


def write_report(out: Path) -> str:
    """Imports NumPy and ONNX Runtime only now: what confgate shares with this process counts as half its memory."""
    from benchmarks.photos import report

    return report.write_report(out)


def main() -> int:
    known = servers(len(os.sched_getaffinity(0)))
    names = [LIMIT, *(server.name for server in known)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each server with each load")
    parser.add_argument("--seconds", type=int, default=4, help="length of a closed loop; three times that with 12mp")
    parser.add_argument("--open-seconds", type=int, default=12, help="length of an open loop; twice that with 12mp")
    parser.add_argument("--concurrency", type=int, nargs="*", default=(1, 8, 32, 128))
    parser.add_argument("--shares", type=int, nargs="*", default=(50, 70, 90), help="arrivals, %% of the capacity")
    parser.add_argument("--photos", nargs="+", choices=[photo.name for photo in PHOTOS], help="default: all")
    parser.add_argument("--servers", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--bundle", type=Path, default=shipped_bundle(), help="default: the highest models/clothing/*")
    parser.add_argument("--port", type=int, default=18300, help="first of 80 free ports")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="take no further turn after that many")
    parser.add_argument("--cache", type=Path, default=Path(".bench"), help="folder for environments")
    parser.add_argument("--out", type=Path, default=Path(".bench/photos"), help="folder for records and results")
    parser.add_argument("--no-tune", action="store_true", help="use the first settings of servers.py")
    parser.add_argument("--report", action="store_true", help="write the report of what is on record; measure nothing")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, which ends the servers on its way
    if arguments.report:
        print(write_report(arguments.out))
        return 0
    if arguments.bundle is None:
        parser.error(f"{CLOTHING} has no version; give a bundle of a network for photos with --bundle")
    if not (arguments.bundle / MANIFEST).is_file():
        parser.error(f"{arguments.bundle} is not a bundle: it has no {MANIFEST}; expected a folder MODELS/NAME/VERSION")
    deadline = time.monotonic() + 60 * arguments.minutes
    try:
        run = Run(
            *(arguments.cache, arguments.out, arguments.bundle, arguments.port),
            *(arguments.seconds, arguments.open_seconds, arguments.shares),
        )
    except LoadError as error:
        parser.error(str(error))
    chosen = arguments.servers or names
    ready, complete = [], True
    for server in known:
        if server.name not in chosen:
            continue
        if time.monotonic() > deadline:
            complete = False
            break
        try:
            run.install(server)
            ready.append(run.tuned(server, not arguments.no_tune))
        except (InstallError, LoadError) as error:
            run.note_failure(server.name, error)
    measured = [name for name in names if name in {LIMIT, *(server.name for server in ready)} and name in chosen]
    photos = [photo for photo in PHOTOS if not arguments.photos or photo.name in arguments.photos]
    wanted = list(turns(arguments.rounds, photos, arguments.concurrency, measured))
    if not arguments.shares:
        wanted = [turn for turn in wanted if turn.concurrency is not None]
    complete = complete and run.take(wanted, ready, deadline)
    print(write_report(arguments.out))
    if not complete:
        print("not all turns are taken: run the same command again to go on")
        return 3
    missing = {turn.key for turn in wanted} - run.records.done()
    return 1 if missing or len(ready) < len([name for name in chosen if name != LIMIT]) else 0


if __name__ == "__main__":
    sys.exit(main())
