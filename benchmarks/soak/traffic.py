"""The clients: most send valid requests and check the answers, some are hostile; together they fill the queue."""

import asyncio
import io
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from benchmarks.soak.costly import costly_kinds, slow_readers
from benchmarks.soak.hostile import Kind, kinds
from benchmarks.soak.wire import Address, Answer, Broken, connected, exchange, expect_end, new_id, read_answer, request

EXAMPLES = Path(__file__).parents[2] / "examples"
# By design under load: the queue is full, or the deadline of an image passed in the queue.
SHED, LATE = 429, 504
LONGEST_VISIT = 50
MAX_NOTED = 50
SLOW_READERS = 20
# The share of costly ones among hostile requests. Some are 20 MB: more of them would crowd out all other kinds.
COSTLY_SHARE = 0.03


@dataclass
class Tally:
    """Counts of requests and answers, and every violation."""

    sent: int = 0
    answered: int = 0
    left: int = 0  # clients that disconnected on purpose
    images: int = 0
    by_kind: dict[str, Counter[int]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    violation_count: int = 0

    def note(self, kind: str, answer: Answer | None, allowed: frozenset[int]) -> None:
        if answer is None:
            self.left += 1
            self.by_kind.setdefault(kind, Counter())[0] += 1
            return
        self.answered += 1
        self.by_kind.setdefault(kind, Counter())[answer.status] += 1
        if answer.status not in allowed | {SHED}:
            self.violate(f"{kind}: {answer.status} {answer.body[:200]!r}, expected {sorted(allowed)}")

    def violate(self, what: str) -> None:
        self.violation_count += 1
        if len(self.violations) < MAX_NOTED:
            self.violations.append(what)


@dataclass(frozen=True)
class Good:
    """A valid request, and the labels that an idle service answers."""

    target: str
    body: bytes
    content_type: str
    labels: tuple[str, ...]


def good_bodies() -> list[tuple[bytes, str]]:
    """Every image format that is accepted unless told otherwise, a large image, and all of them as one form."""
    bodies: list[tuple[bytes, str]] = []
    for file in sorted(EXAMPLES.glob("*.png")):
        picture = Image.open(file).convert("RGB")
        for kind in ("PNG", "JPEG", "WEBP", "GIF"):
            encoded = io.BytesIO()
            picture.save(encoded, kind)
            bodies.append((encoded.getvalue(), f"image/{kind.lower()}"))
        large = io.BytesIO()
        picture.resize((1200, 900)).save(large, "JPEG")
        bodies.append((large.getvalue(), "image/jpeg"))
    part = b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n%s\r\n'
    bodies.append((b"".join(part % body for body, _ in bodies) + b"--x--\r\n", "multipart/form-data; boundary=x"))
    return bodies


async def good_requests(address: Address, models: Sequence[str]) -> list[Good]:
    """Every body for every model, each sent once while the service is idle to learn the correct labels."""
    found = []
    for number, (body, content_type) in enumerate(good_bodies()):
        for model in models:
            query = f"model={model}&top_k=1" + ("&preprocess=true" if number % 6 == 0 else "")
            target = f"/v1/predict?{query}"
            data = request(target, body, content_type, request_id=new_id(), close=True)
            answer = await exchange(address, data)
            if answer.status != 200:
                raise Broken(f"an idle service answered {answer.status} {answer.body!r} to {target}")
            labels = tuple(item["label"] for item in answer.json["predictions"])
            found.append(Good(target, body, content_type, labels))
    return found


class Traffic:
    """Valid and hostile clients against one service; `tally` counts what they see."""

    def __init__(self, address: Address, good: Sequence[Good], body_seconds: float, seed: int) -> None:
        self.tally = Tally()
        self._address = address
        self._good = good
        self._kinds = kinds(body_seconds)
        self._costly = costly_kinds()
        self._slow_readers = slow_readers()
        self._random = random.Random(seed)
        self._over = asyncio.Event()

    async def run(self, seconds: float, polite: int, hostile: int) -> None:
        """Runs all clients for that long; each finishes the requests it has begun."""
        jobs = [asyncio.create_task(self._polite()) for _ in range(polite)]
        jobs += [asyncio.create_task(self._hostile()) for _ in range(hostile)]
        jobs += [asyncio.create_task(self._slow_reader()) for _ in range(SLOW_READERS)]
        await asyncio.sleep(seconds)
        self._over.set()
        await asyncio.gather(*jobs)

    async def every_kind_once(self) -> None:
        """Sends every hostile kind once: all at the same time, then all costly and slow ones."""
        await asyncio.gather(*(self._offend(kind) for kind in self._kinds))
        await asyncio.gather(*(self._offend(kind) for kind in (*self._costly, *self._slow_readers)))

    async def _polite(self) -> None:
        while not self._over.is_set():
            try:
                await self._visit(self._random.randint(1, LONGEST_VISIT))
            except (Broken, OSError) as error:
                self.tally.violate(f"proper request: {error!r}")

    async def _visit(self, requests: int) -> None:
        """Several requests on one connection. Ids and the end of the connection show that each got one answer."""
        async with connected(self._address) as (reader, writer):
            for left in reversed(range(requests)):
                last = left == 0 or self._over.is_set()
                good, request_id = self._random.choice(self._good), new_id()
                self.tally.sent += 1
                writer.write(request(good.target, good.body, good.content_type, request_id=request_id, close=last))
                answer = await read_answer(reader)
                self._check(good, request_id, answer)
                if answer.status == SHED:
                    await asyncio.sleep(0.2)
                if last or answer.headers.get("connection") == "close":
                    await expect_end(reader)
                    return

    def _check(self, good: Good, request_id: str, answer: Answer) -> None:
        self.tally.note("proper request", answer, frozenset({200, LATE}))
        if answer.headers.get("x-request-id") != request_id:
            self.tally.violate(f"proper request: id {request_id} was answered {answer.headers.get('x-request-id')}")
        if answer.status == 200:
            labels = tuple(item["label"] for item in answer.json["predictions"])
            self.tally.images += len(labels)
            if labels != good.labels:
                self.tally.violate(f"proper request: {labels} instead of {good.labels}")

    async def _hostile(self) -> None:
        while not self._over.is_set():
            costly = self._random.random() < COSTLY_SHARE
            await self._offend(self._random.choice(self._costly if costly else self._kinds))
            await asyncio.sleep(self._random.random() * 0.05)

    async def _slow_reader(self) -> None:
        while not self._over.is_set():
            await self._offend(self._random.choice(self._slow_readers))

    async def _offend(self, kind: Kind) -> None:
        self.tally.sent += 1
        request_id = new_id()
        try:
            answer = await kind.send(self._address, request_id)
        except (Broken, OSError) as error:
            self.tally.violate(f"{kind.name}: {error!r}")
            return
        # A saturated service may be late with anything that needs the model.
        allowed = kind.allowed | {LATE} if 200 in kind.allowed else kind.allowed
        self.tally.note(kind.name, answer, allowed)
        if answer is not None and kind.echoes_id and answer.headers.get("x-request-id") != request_id:
            self.tally.violate(f"{kind.name}: id {request_id} answered {answer.headers.get('x-request-id')}")
