"""Saturates the service with valid and hostile requests and checks every answer: `make soak`.

    python -m benchmarks.soak [--seconds 1800] [--out .bench/soak] [--models models] [--polite 48] [--hostile 16]

The exit code is 0 only if every request got exactly one correct answer, no answer was an unexpected 5xx, memory stayed
flat, the log has no errors, and the service exited with 0. Two statuses are allowed by design: 429 (the queue is full)
and 504 (the deadline of an image passed in the queue). Writes report.md, report.json and memory.png.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from benchmarks.serving.load import Prober
from benchmarks.soak.report import Soak, judge, write_report
from benchmarks.soak.traffic import Traffic, good_requests
from benchmarks.soak.watch import ROOT, WatchedService
from benchmarks.soak.wire import Address

BODY_SECONDS = 2.0


async def drive(service: WatchedService, seconds: float, polite: int, hostile: int, seed: int) -> tuple[Soak, Traffic]:
    """Runs the traffic against a service, with memory and liveness sampled beside it."""
    address = Address("127.0.0.1", service.port)
    good = await good_requests(address, service.models)
    traffic = Traffic(address, good, BODY_SECONDS, seed)
    # Send every kind once before the clock starts: what is allocated on first use is not growth.
    await traffic.every_kind_once()
    service.start_sampling()
    with Prober(service.port, "/v2/health/live", pause=0.1) as prober:
        await traffic.run(seconds, polite, hostile)
    return Soak(seconds, traffic.tally, service.memory, prober.milliseconds, prober.failures), traffic


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--models", type=Path, default=ROOT / "models")
    parser.add_argument("--out", type=Path, default=Path(".bench/soak"))
    parser.add_argument("--polite", type=int, default=48, help="clients that send valid requests")
    parser.add_argument("--hostile", type=int, default=16, help="clients that send hostile requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--untimed", action="store_true", help="do not judge memory or the latency of health checks")
    arguments = parser.parse_args()
    with WatchedService(arguments.models, BODY_SECONDS) as service:
        soak, traffic = asyncio.run(
            drive(service, arguments.seconds, arguments.polite, arguments.hostile, arguments.seed)
        )
        asyncio.run(traffic.every_kind_once())  # every kind once more, after the load
        soak.exit_code = service.stop()
        soak.complaints, soak.log_lines = list(service.complaints), service.log_lines
    findings = judge(soak, timed=not arguments.untimed)
    print(write_report(soak, findings, arguments.out))
    return 0 if all(finding.met for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
