"""All attacks: costly files on 16 connections, and clients that are slow, silent or many."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from benchmarks.attacks.files import FILES, AttackFile
from benchmarks.soak.traffic import EXAMPLES
from benchmarks.soak.wire import head

PREDICT = "/v1/predict"
CONNECTIONS = 16
LARGE_ASSET = "/docs/assets/swagger-ui-bundle.js"
# Of all connections together: what made the service take 1.3 GB once.
TRAILER_BYTES = 62_000_000


class Attack(NamedTuple):
    """`make` returns the bytes that each connection sends."""

    name: str
    make: Callable[[], bytes]
    connections: int = CONNECTIONS
    alone: bool = True  # whether it is also sent once, while the model is idle
    reads: bool = True  # whether the clients read their answers
    descriptors: int = 0  # limit of open files for the service; 0 leaves it as it is


def post(content_type: str, body: bytes) -> bytes:
    return head("POST", PREDICT, {"Content-Type": content_type, "Content-Length": str(len(body))}) + body


def get(target: str) -> bytes:
    return head("GET", target, {})


def of_file(file: AttackFile) -> Attack:
    return Attack(file.name, lambda: post(file.content_type, file.make()))


def endless_trailers() -> bytes:
    """A chunked request that is whole but for its trailers, which go on."""
    image = (EXAMPLES / "cat.png").read_bytes()
    top = head("POST", PREDICT, {"Content-Type": "image/png", "Transfer-Encoding": "chunked"})
    line = b"X-%d: " + b"a" * 20 + b"\r\n"
    lines = b"".join(line % number for number in range(TRAILER_BYTES // CONNECTIONS // (len(line) + 4)))
    return b"%s%x\r\n%s\r\n0\r\n%s" % (top, len(image), image, lines)


CLIENTS = (
    Attack("1,400 clients that never read /docs/assets", partial(get, LARGE_ASSET), 1400, alone=False, reads=False),
    Attack("1,000 heads without an end", partial(bytes, get("/v1/models")[:-2]), 1000, alone=False, reads=False),
    Attack("16 bodies with endless trailers", endless_trailers, alone=False),
    Attack("40 scrapers of /metrics", partial(get, "/metrics"), 40, alone=False),
    Attack("80 idle connections, 64 descriptors", bytes, 80, alone=False, reads=False, descriptors=64),
)


def all_attacks() -> Iterator[Attack]:
    yield from map(of_file, FILES)
    yield from CLIENTS
