"""One attack on a running service, and what other clients and the memory showed meanwhile."""

import json
import math
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from PIL import Image

from benchmarks.attacks.attacks import Attack, get, post
from benchmarks.attacks.client import ANSWER_SECONDS, Orders, Seen
from benchmarks.attacks.files import encoded, noise
from benchmarks.serving.processes import cpu_seconds, pss_bytes
from benchmarks.soak.traffic import EXAMPLES

ROOT = Path(__file__).parents[2]
# The goals are about the first three. A photo is decoded in a worker process, where the costly files are decoded too.
HEALTH, SMALL, LARGE, PHOTO = "health", "small PNG", "400 × 400 PNG", "1200 × 900 JPEG"
PAUSES = {HEALTH: 0.01, SMALL: 0.02, LARGE: 0.02, PHOTO: 0.1}
SAMPLE_SECONDS = 0.1
# Five interpreters start; then the one that attacks alone asks 300 times, as a client that the service takes for the
# only one: its requests may be computed on the event loop.
START_SECONDS, FIRST_SECONDS, FIRST_REQUESTS = 1.0, 3.0, 300
# The attacker's CPU time is not the service's: on another machine it would not compete.
ATTACKER_NICENESS = 10
ALONE, TOGETHER = "alone", "together"


@dataclass
class Latency:
    """Milliseconds of the answers that one of the other clients got, and how many it did not get."""

    requests: int = 0
    milliseconds: list[float] = field(default_factory=list)
    lost: Counter[int] = field(default_factory=Counter)

    def at(self, share: float) -> float:
        ordered = sorted(self.milliseconds)
        return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.inf


@dataclass
class Outcome:
    """What one phase of an attack showed."""

    attack: str
    phase: str
    statuses: Counter[int]
    others: dict[str, Latency]
    idle_bytes: int
    peak_bytes: int
    cpu_seconds: float


def latency(seen: Sequence[Seen], pause: float, by_clock: bool) -> Latency:
    """`by_clock` adds the requests that would have been sent while one waited: a long silence counts for its length."""
    found = Latency(len(seen))
    for one in seen:
        found.milliseconds.append(one.milliseconds)
        if by_clock:
            step = 1000 * pause
            found.milliseconds += [one.milliseconds - n * step for n in range(1, int(one.milliseconds // step))]
        if one.status != 200:
            found.lost[one.status] += 1
    return found


def write_requests(folder: Path) -> dict[str, Path]:
    """The requests of the other clients, as files."""
    cat = EXAMPLES / "cat.png"
    photo = Image.open(cat).convert("RGB").resize((1200, 900))
    requests = {
        HEALTH: get("/v2/health/live"),
        SMALL: post("image/png", cat.read_bytes()),
        LARGE: post("image/png", encoded(noise(400), "PNG")),
        PHOTO: post("image/jpeg", encoded(photo, "JPEG")),
    }
    files = {}
    for name, content in requests.items():
        files[name] = folder / f"{name}.request"
        files[name].write_bytes(content)
    return files


class Client:
    """A process that follows its orders; `seen` waits for its end."""

    def __init__(self, orders: Orders) -> None:
        self._limit = orders.start + orders.seconds + 2 * ANSWER_SECONDS
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.attacks.client"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(orders._asdict()).encode())
        self.process.stdin.close()
        self.process.stdin = None

    def seen(self) -> list[Seen]:
        try:
            output, _ = self.process.communicate(timeout=max(1.0, self._limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return []
        return [Seen(*one) for one in json.loads(output)]


class PeakMemory:
    """The largest PSS of a process and its descendants while this context lasts, sampled in a thread."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.idle = self.peak = pss_bytes(root)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, pss_bytes(self._root))


def measure(
    service: int, port: int, attack: Attack, phase: str, seconds: float, request: Path, others: dict[str, Path]
) -> Outcome:
    """Runs the attack and the other clients at the same time, and samples the memory of the service meanwhile."""
    cpu, start = cpu_seconds(service), time.monotonic() + START_SECONDS
    if phase == ALONE:
        start += FIRST_SECONDS
        orders = Orders(
            port, str(request), start, seconds, most=1, first=str(others[SMALL]), first_count=FIRST_REQUESTS
        )
    else:
        most = Orders._field_defaults["most"] if attack.reads else 3 * attack.connections
        orders = Orders(port, str(request), start, seconds, attack.connections, most=most, reads=attack.reads)
    with PeakMemory(service) as memory:
        attacker = Client(orders._replace(niceness=ATTACKER_NICENESS))
        clients = {}
        # When a file comes alone the model is idle, and the event loop serves no other: the clients come 50 ms later.
        begin = start + 0.05
        for name, file in others.items():
            clients[name] = Client(Orders(port, str(file), begin, seconds, pause=PAUSES[name], fresh=not attack.reads))
        statuses = Counter(one.status for one in attacker.seen())
        latencies = {
            name: latency(client.seen(), PAUSES[name], by_clock=name == HEALTH) for name, client in clients.items()
        }
    spent = cpu_seconds(service) - cpu
    return Outcome(attack.name, phase, statuses, latencies, memory.idle, memory.peak, spent)
