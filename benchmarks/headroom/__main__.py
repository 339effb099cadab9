"""What HTTP, decoding, batching and the gate cost when inference costs nothing: `make headroom`.

    python -m benchmarks.headroom [--other CHECKOUT] [--profile] [--rounds 5] [--seconds 2]

The service runs as it ships, on one CPU, with a session that returns at once; wrk runs on another CPU. A row is one
kind of request at one concurrency: images/s, and images per second of the service's CPU time, which is what one core
makes when it is busy all the time. With --other the service of another checkout takes turns with this one; its answers
must be the same bytes. --profile says where the CPU time goes.

Every round starts the services again: two processes of the same code may differ by a tenth for as long as they run.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

from benchmarks.headroom.profile import profile
from benchmarks.headroom.requests import Request, all_requests
from benchmarks.headroom.services import CPUs, Result, Service, started, take_cpus
from benchmarks.serving.load import LoadError, wrk_program
from benchmarks.serving.processes import busy_share
from benchmarks.serving.servers import ROOT

CONCURRENCIES = (1, 8, 32)
PROFILED_AT = 32  # requests at once
PROFILE_SECONDS = 8
WARM_UP_SECONDS = 1
Turn = Sequence[Result]  # of one round: this service, and the other one if there is one
HEADING = f"{'':26} {'at once':>7} {'images/s':>9} {'per core':>9} {'p50 ms':>8}"


def row(request: Request, concurrency: int, turns: Sequence[Turn]) -> str:
    """The medians of the first service; and, if there are two, those of the other and the ratio per core."""
    text = f"{request.name:26} {concurrency:7} {_cells([turn[0] for turn in turns])}"
    if len(turns[0]) == 1:
        return text
    ratios = [turn[0].per_core / turn[1].per_core for turn in turns]
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return f"{text}   {_cells([turn[1] for turn in turns])}   {spread}"


def _cells(results: Sequence[Result]) -> str:
    speed, per_core, p50 = (
        statistics.median(column)
        for column in zip(*((one.images_per_second, one.per_core, one.p50_ms) for one in results), strict=True)
    )
    return f"{speed:9,.0f} {per_core:9,.0f} {p50:8.2f}"


def measure(services: Sequence[Service], request: Request, concurrency: int, number: int, seconds: int) -> Turn:
    # Each round begins with the other service.
    order = list(enumerate(services))[:: 1 if number % 2 == 0 else -1]
    found = {place: service.measure(request, concurrency, seconds) for place, service in order}
    return [found[place] for place in range(len(services))]


def profiled(service: Service, request: Request) -> str:
    shares = profile(
        service.process,
        PROFILE_SECONDS,
        service.folder,
        lambda: service.measure(request, PROFILED_AT, PROFILE_SECONDS + 3),
    )
    return "\n".join([f"{request.name} at {PROFILED_AT}", *(f"    {part:42} {of:6.1%}" for part, of in shares.items())])


def same_answers(services: Sequence[Service], request: Request) -> None:
    if len({service.answer(request) for service in services}) > 1:
        raise LoadError(f"{request.name}: the two checkouts give different answers")


def run(arguments: argparse.Namespace, cpus: CPUs) -> None:
    checkouts = [ROOT.resolve(), *([arguments.other.resolve()] if arguments.other else [])]
    wanted = [request for request in all_requests() if arguments.only.lower() in request.name.lower()]
    print(
        f"medians of {arguments.rounds} rounds of {arguments.seconds} s; service on CPU {cpus.service}, wrk on CPU "
        f"{cpus.client}; other programs use {busy_share():.0%} of the CPUs"
    )
    other = f"   {'other':>9} {'per core':>9} {'p50 ms':>8}   ratio per core" if arguments.other else ""
    print(HEADING + other, flush=True)
    for side in sorted({request.side for request in wanted}):
        requests = [request for request in wanted if request.side == side]
        turns: dict[tuple[Request, int], list[Turn]] = {}
        for number in range(arguments.rounds):
            with services_up(checkouts, side, cpus, arguments.cache) as services:
                for request in requests:
                    same_answers(services, request)
                    for service in services:
                        service.measure(request, max(arguments.concurrency), WARM_UP_SECONDS)
                    for concurrency in arguments.concurrency:
                        turn = measure(services, request, concurrency, number, arguments.seconds)
                        turns.setdefault((request, concurrency), []).append(turn)
        for (request, concurrency), measured in turns.items():
            print(row(request, concurrency, measured), flush=True)
        if arguments.profile:
            with services_up(checkouts, side, cpus, arguments.cache) as services:
                for request, service in product(requests, services):
                    print(f"{service.checkout}: {profiled(service, request)}", flush=True)


@contextmanager
def services_up(checkouts: Sequence[Path], side: int, cpus: CPUs, cache: Path) -> Iterator[list[Service]]:
    with ExitStack() as stack:
        yield [stack.enter_context(started(path, side, cpus, cache, i)) for i, path in enumerate(checkouts)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, metavar="CHECKOUT", help="compare with the service of this checkout")
    parser.add_argument("--profile", action="store_true", help="say where the CPU time goes (needs py-spy)")
    parser.add_argument("--rounds", type=int, default=5, help="starts of each service; 0: only profiles")
    parser.add_argument("--seconds", type=int, default=2, help="length of each measurement")
    parser.add_argument("--concurrency", type=int, nargs="+", default=CONCURRENCIES)
    parser.add_argument("--only", default="", metavar="WORD", help="only requests with this word in their name")
    parser.add_argument("--cache", type=Path, default=Path(".bench/headroom"), help="folder for bundles and logs")
    arguments = parser.parse_args()
    arguments.cache = arguments.cache.resolve()
    try:
        wrk_program()  # raises before anything is started
        run(arguments, take_cpus())
    except LoadError as error:
        print(f"headroom: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
