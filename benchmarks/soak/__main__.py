"""Saturates the service with valid and hostile requests and checks every answer: `make soak`.

    python -m benchmarks.soak [--seconds 1800] [--out .bench/soak] [--models models] [--polite 48] [--hostile 16]

The exit code is 0 only if every request got exactly one correct answer, no answer was an unexpected 5xx, memory stayed
flat and within its bound, the log has no errors, and the service exited with 0. Two statuses are allowed by design: 429
(the queue is full) and 504 (the deadline of an image passed in the queue). Writes report.md, report.json, memory.png.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

from benchmarks.attacks.client import Orders
from benchmarks.attacks.measure import Client
from benchmarks.serving.processes import pss_bytes
from benchmarks.soak.report import Soak, judge, write_report
from benchmarks.soak.traffic import Traffic, good_requests
from benchmarks.soak.watch import ROOT, WatchedService
from benchmarks.soak.wire import Address, head

BODY_SECONDS = 2.0


async def drive(service: WatchedService, arguments: argparse.Namespace) -> tuple[Soak, Traffic]:
    """Runs the traffic against a service, with memory and liveness sampled beside it."""
    seconds, health = arguments.seconds, arguments.out / "health.request"
    health.write_bytes(head("GET", "/v2/health/live", {}))
    address = Address("127.0.0.1", service.port)
    good = await good_requests(address, service.models)
    idle = pss_bytes(service.process.pid)
    traffic = Traffic(address, good, BODY_SECONDS, arguments.seed)
    # Send every kind once before the clock starts: what is allocated on first use is not growth.
    await traffic.every_kind_once()
    service.start_sampling()
    # A process of its own: the clients here are Python too, and would delay it.
    prober = Client(Orders(service.port, str(health), time.monotonic(), seconds, pause=0.1))
    await traffic.run(seconds, arguments.polite, arguments.hostile)
    service.stop_sampling()
    seen = await asyncio.to_thread(prober.seen)
    failures = [f"status {one.status}" for one in seen if one.status != 200]
    milliseconds = [one.milliseconds for one in seen]
    return Soak(seconds, traffic.tally, service.memory, idle, milliseconds, failures), traffic


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
    arguments.out.mkdir(parents=True, exist_ok=True)
    with WatchedService(arguments.models, BODY_SECONDS) as service:
        soak, traffic = asyncio.run(drive(service, arguments))
        asyncio.run(traffic.every_kind_once())  # every kind once more, after the load
        soak.exit_code = service.stop()
        soak.complaints, soak.log_lines = list(service.complaints), service.log_lines
    findings = judge(soak, timed=not arguments.untimed)
    print(write_report(soak, findings, arguments.out))
    return 0 if all(finding.met for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
