"""confgate beside other model servers, and bare ONNX Runtime as the limit: `make bench-serving`.

    python -m benchmarks.serving [--rounds 9] [--seconds 2] [--out .bench/serving] [--only NAME …] [--no-tune]

First every batching setting of each peer is tried, and the best one kept. Then all servers are started and their
answers checked against ONNX Runtime. At each concurrency they are asked in turn for some seconds, one turn after the
other: what else happens on the machine falls on all of them. A cell of the result is the median over the turns, and so
is a ratio of two servers. Writes results.json, results.md and cost.png.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.serving.report import write_report
from benchmarks.serving.rounds import Bench
from benchmarks.serving.servers import SERVERS

CONCURRENCIES = (1, 8, 32, 128)
REQUEST_SIZES = (1, 2, 4, 8, 16, 32)


def main() -> int:
    names = [server.name for server in SERVERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="turns of every server at each concurrency")
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement")
    parser.add_argument("--concurrency", type=int, nargs="+", default=CONCURRENCIES)
    parser.add_argument("--request-sizes", type=int, nargs="*", default=REQUEST_SIZES, help="images in one request")
    parser.add_argument("--threads", type=int, default=1, help="of ONNX Runtime, everywhere")
    parser.add_argument("--port", type=int, default=18100, help="from here on 50 must be free")
    parser.add_argument("--cache", type=Path, default=Path(".bench"), help="environments, network, logs")
    parser.add_argument("--out", type=Path, default=Path(".bench/serving"), help="where the results go")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--no-tune", action="store_true", help="take the batching settings of servers.py untried")
    arguments = parser.parse_args()
    chosen = [server for server in SERVERS if not arguments.only or server.name in arguments.only]
    bench = Bench(arguments.cache, arguments.port, arguments.threads, arguments.seconds)
    findings = bench.run(
        chosen, arguments.rounds, arguments.concurrency, arguments.request_sizes, tune=not arguments.no_tune
    )
    print(write_report(findings, arguments.out))
    return 1 if findings.failures else 0


if __name__ == "__main__":
    sys.exit(main())
