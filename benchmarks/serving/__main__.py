"""confgate compared with other model servers, and with bare ONNX Runtime as the limit: `make bench-serving`.

    python -m benchmarks.serving [--rounds 9] [--seconds 2] [--out .bench/serving] [--only NAME …] [--no-tune]

The run first tries every batching setting of each peer and keeps the best. Then it starts all servers and checks their
answers against ONNX Runtime. At each concurrency wrk drives one server after another for some seconds, in several
turns, so that other work on the machine affects all of them. A cell of the result is the median over the turns, and so
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
    parser.add_argument("--rounds", type=int, default=9, help="turns per server and concurrency")
    parser.add_argument("--seconds", type=int, default=2, help="length of each measurement")
    parser.add_argument("--concurrency", type=int, nargs="+", default=CONCURRENCIES)
    parser.add_argument("--request-sizes", type=int, nargs="*", default=REQUEST_SIZES, help="images in one request")
    parser.add_argument("--threads", type=int, default=1, help="threads of ONNX Runtime, the same for every server")
    parser.add_argument("--port", type=int, default=18100, help="first of 50 free ports")
    parser.add_argument("--cache", type=Path, default=Path(".bench"), help="folder for environments, network and logs")
    parser.add_argument("--out", type=Path, default=Path(".bench/serving"), help="folder for the results")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--no-tune", action="store_true", help="use the batching settings of servers.py as they are")
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
