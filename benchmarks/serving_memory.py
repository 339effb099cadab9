"""The memory of `confgate serve`, with all its processes: ready, under load, and with preprocessed scores.

    python -m benchmarks.serving_memory MODELS IMAGE [IMAGE …] [--seconds 6] [--concurrency 32] [--flags …]

Serves the bundles of a folder as `confgate serve` does. Every model, and then every perturbed graph, is asked for each
of the image files in turn, in a closed loop (wrk). A row says what was the most meanwhile and what was left at its end,
as PSS: pages that several processes share are counted once.
"""

import argparse
import http.client
import json
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.serving.load import LoadError, drive
from benchmarks.serving.processes import free_port, pss_bytes, running

TYPES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp"}
START_SECONDS = 120
LOOK_SECONDS = 0.1


class Watched:
    """The memory of a process and its descendants while a block runs."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.most = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.most, over = pss_bytes(self.process), threading.Event()

        def look() -> None:
            while not over.wait(LOOK_SECONDS):
                self.most = max(self.most, pss_bytes(self.process))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def row(self, what: str, speed: str = "") -> str:
        return f"{what:44} {self.most / 1e6:9.0f} {pss_bytes(self.process) / 1e6:9.0f} {speed:>12}"


def served(port: int) -> list[tuple[str, int, bool]]:
    """Name, version and whether there is a perturbed graph, of everything that is served."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/v1/models")
    models = json.loads(connection.getresponse().read())["models"]
    return [
        (model["name"], version["version"], "perturbed" in version["graphs"])
        for model in models
        for version in model["versions"]
    ]


def wait_until_ready(port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass  # it does not listen yet
        time.sleep(LOOK_SECONDS)
    raise LoadError(f"the service was not ready within {START_SECONDS} s: {log.read_text()[-500:]}")


def measure(arguments: argparse.Namespace) -> None:
    unknown = [path for path in arguments.image if path.suffix.lower() not in TYPES]
    if unknown:
        raise LoadError(f"{unknown[0]} has none of the endings {', '.join(TYPES)}")
    port = free_port()
    flags = ["--models", str(arguments.models.resolve()), "--port", str(port), *shlex.split(arguments.flags)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with running([sys.executable, "-m", "service", "serve", *flags], {}, Path.cwd(), log) as process:
            watched = Watched(process.pid)
            print(f"{'':44} {'most, MB':>9} {'then, MB':>9} {'requests/s':>12}")
            with watched.watching():
                wait_until_ready(port, log)
            print(watched.row("start"), flush=True)
            rows = served(port)
            for preprocess in (False, True):
                for name, version, perturbed in rows:
                    if perturbed or not preprocess:
                        _load(watched, port, arguments, name, version, preprocess)


def _load(
    watched: Watched, port: int, arguments: argparse.Namespace, name: str, version: int, preprocess: bool
) -> None:
    query = f"model={name}&version={version}" + ("&preprocess=true" if preprocess else "")
    url, seconds, answered = f"http://127.0.0.1:{port}/v1/predict?{query}", 0.0, 0
    with watched.watching():
        for image in arguments.image:
            kind = TYPES[image.suffix.lower()]
            result = drive(watched.process, url, kind, image, arguments.concurrency, arguments.seconds)
            if result.errors:
                raise LoadError(f"{query}: {result.errors} errors in {result.requests} requests")
            seconds, answered = seconds + result.seconds, answered + result.requests
    print(watched.row(query, f"{answered / seconds:.1f}"), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="folder with bundles, NAME/VERSION")
    parser.add_argument("image", type=Path, nargs="+", help="image files to send")
    parser.add_argument("--seconds", type=int, default=6, help="length of the load for each image")
    parser.add_argument("--concurrency", type=int, default=32, help="requests at once")
    parser.add_argument("--flags", default="", help="more flags of `confgate serve`, as one text")
    try:
        measure(parser.parse_args())
    except LoadError as error:
        print(f"serving_memory: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
