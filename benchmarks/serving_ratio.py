"""The serving speed of this checkout of confgate compared with another one, interleaved in one run.

    python -m benchmarks.serving_ratio OTHER_CHECKOUT [--rounds 9] [--seconds 2] [--bundle models/NAME/VERSION]

Both services run with this interpreter, the network of `benchmarks.serving` or a bundle, and the settings as shipped,
including the access log. `--other-bundle` gives the other service a bundle of its own. wrk sends one PNG to each in
turn while the other is suspended; which one goes first alternates. A ratio compares the two measurements of one round,
so that other work on the machine affects both. The spread is the smallest and the largest ratio over the rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.serving.load import LoadError, wrk_program
from benchmarks.serving.processes import busy_share, free_port, suspend
from benchmarks.serving.rounds import Bench, Running
from benchmarks.serving.servers import CONFGATE, ROOT, Server

CONCURRENCIES = (1, 8, 32, 128)
THIS, OTHER = "this", "other"


def service_of(name: str, checkout: Path) -> Server:
    """confgate with the code of a checkout: PYTHONPATH decides what `python -m service` runs."""
    found = subprocess.run(
        [sys.executable, "-c", "import service; print(service.__path__[0])"],
        env={**os.environ, "PYTHONPATH": str(checkout)},
        cwd="/",  # Python searches the working folder first, and that of a server is not the checkout
        capture_output=True,
        text=True,
    ).stdout.strip()
    if not found or Path(found).resolve() != checkout / "service":
        raise LoadError(f"{checkout} is not a checkout of confgate: it has no package `service`")
    return replace(CONFGATE, name=f"ratio {name}", settings={"PYTHONPATH": str(checkout)})


def measure(bench: Bench, pair: Sequence[Running], concurrency: int, rounds: int) -> list[tuple[float, float]]:
    """Requests/s of (this, other) in each round; raises if a request fails."""
    speeds = []
    for number in range(rounds):
        turn: dict[str, float] = {}
        for one in pair if number % 2 == 0 else reversed(pair):
            result = bench.measure(one, concurrency)
            if result.errors:
                raise LoadError(f"{one.server.name}: {result.errors} errors in {result.requests} requests")
            turn[one.server.name] = result.images_per_second  # one image per request
        this, other = (turn[one.server.name] for one in pair)
        speeds.append((this, other))
    return speeds


def row(concurrency: int, speeds: Sequence[tuple[float, float]]) -> str:
    this, other = (statistics.median(column) for column in zip(*speeds, strict=True))
    ratios = [ours / theirs for ours, theirs in speeds]
    spread = f"{min(ratios):.3f}..{max(ratios):.3f}"
    return f"{concurrency:11} {this:12,.0f} {other:12,.0f} {statistics.median(ratios):8.3f}  {spread}"


def compare(arguments: argparse.Namespace) -> None:
    wrk_program()  # raises before anything is started
    checkouts = {THIS: ROOT.resolve(), OTHER: arguments.other.resolve()}
    services = [service_of(name, checkout) for name, checkout in checkouts.items()]
    bench = Bench(arguments.cache, 0, arguments.threads, arguments.seconds, arguments.bundle)
    others = arguments.other_bundle
    benches = [bench, Bench(arguments.cache, 0, arguments.threads, arguments.seconds, others) if others else bench]
    for name, checkout in checkouts.items():
        print(f"{name:5} {checkout}")
    print(
        f"medians of {arguments.rounds} rounds of {arguments.seconds} s, {arguments.threads} ONNX Runtime threads; "
        f"other programs use {busy_share():.0%} of the CPUs"
    )
    print(f"{'concurrency':>11} {'this req/s':>12} {'other req/s':>12} {'ratio':>8}  min..max", flush=True)
    with ExitStack() as stack:
        pair = []
        for service, its_bench in zip(services, benches, strict=True):
            pair.append(stack.enter_context(its_bench.started(service, free_port())))
            suspend(pair[-1].process)
        for concurrency in arguments.concurrency:
            print(row(concurrency, measure(bench, pair, concurrency, arguments.rounds)), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, metavar="OTHER_CHECKOUT", help="the folder that contains its service/")
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each service at each concurrency")
    parser.add_argument("--seconds", type=int, default=2, help="length of each measurement")
    parser.add_argument("--concurrency", type=int, nargs="+", default=CONCURRENCIES)
    parser.add_argument("--threads", type=int, default=1, help="of ONNX Runtime")
    parser.add_argument("--bundle", type=Path, help="models/NAME/VERSION, alone in its models folder")
    parser.add_argument("--other-bundle", type=Path, help="likewise, for the other service")
    parser.add_argument("--cache", type=Path, default=Path(".bench"), help="folder for the network and the logs")
    try:
        compare(parser.parse_args())
    except LoadError as error:
        print(f"serving_ratio: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
