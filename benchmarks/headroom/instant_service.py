"""`confgate serve` with a session that returns at once: its outputs are looked up, not computed.

    PYTHONPATH=CHECKOUT python benchmarks/headroom/instant_service.py --models DIR --port PORT

A script and not a module of `benchmarks`: PYTHONPATH decides which checkout's service it runs.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from service.logs import configure_logs, flush_logs
from service.model.bundle import Bundle
from service.model.manifest import GraphName
from service.model.session import ActiveDevice, Device, expected_outputs
from service.settings import load_settings
from service.web.app import create_app
from service.web.server import DrainingServer

ROWS = 256  # one for each value of an image's first byte


class InstantSession:
    """Looks each image's outputs up by its first byte, so that images that change places change the answer."""

    device: ActiveDevice = "cpu"
    providers = ("InstantExecutionProvider",)

    def __init__(self, outputs: Mapping[str, Any], largest_batch: int) -> None:
        self._outputs = outputs
        self.largest_batch = largest_batch

    def run(self, images: Any) -> dict[str, Any]:
        rows = images[:, 0, 0, 0]
        return {name: table[rows] for name, table in self._outputs.items()}


def open_instant(
    bundle: Bundle,
    graph: GraphName,
    device: Device,  # noqa: ARG001 - the protocol's, as are the next
    threads: int,  # noqa: ARG001
    max_batch: int,
    batch_bytes: int = 0,  # noqa: ARG001 - not given by checkouts before it
) -> InstantSession:
    """Takes the place of `open_session`. The values are drawn once, from a fixed seed."""
    random = np.random.default_rng(0)
    shapes = {name: (ROWS, *map(int, shape[1:])) for name, shape in expected_outputs(bundle, graph).items()}
    tables = {name: random.normal(0, 4, shape).astype(np.float32) for name, shape in shapes.items()}
    return InstantSession(tables, max_batch)


def main() -> None:
    names = (flag.removeprefix("--").replace("-", "_") for flag in sys.argv[1::2])
    flags = dict(zip(names, sys.argv[2::2], strict=True))
    settings = load_settings(flags, os.environ, None)
    configure_logs(settings.log_level)
    DrainingServer(create_app(settings, open_instant), settings).run()
    flush_logs()


if __name__ == "__main__":
    main()
