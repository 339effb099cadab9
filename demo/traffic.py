"""Sends images at a steady rate, one per request. The share of OOD images is zero at first and then grows slowly.

The clock decides what is sent, not the count: a machine that cannot keep the rate sends fewer images, in the same
mixture at the same time.
"""

import http.client
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from demo.answers import Answer
from demo.images import KNOWN, Deck, ImageSet

SENDERS = 4
TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Schedule:
    """A quarter of the time without OOD images, half with a growing share of them, a quarter with the largest."""

    seconds: float
    largest_share: float

    @property
    def ramp(self) -> tuple[float, float]:
        """When the share of OOD images begins to grow, and when it is largest."""
        return self.seconds / 4, self.seconds * 3 / 4

    def foreign_share(self, at: float) -> float:
        start, end = self.ramp
        return self.largest_share * min(1.0, max(0.0, (at - start) / (end - start)))


class Traffic:
    """Senders in background threads; `answers` grows as answers arrive."""

    def __init__(
        self, address: tuple[str, int], known: ImageSet, foreign: ImageSet, schedule: Schedule, rate: float, seed: int
    ) -> None:
        self.answers: list[Answer] = []
        self.failures: Counter[str] = Counter()
        self.began_wall = self._began = 0.0
        self._address, self._known, self._foreign = address, known, foreign
        self._schedule, self._interval = schedule, 1 / rate
        self._random = np.random.default_rng(seed)
        self._decks = {kind.name: Deck(len(kind), self._random) for kind in (known, foreign)}
        self._slot = 0.0
        self._turn, self._stop = threading.Lock(), threading.Event()
        self._senders = [threading.Thread(target=self._send_all, daemon=True) for _ in range(SENDERS)]

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def start(self) -> None:
        self.began_wall, self._began = time.time(), time.monotonic()
        for sender in self._senders:
            sender.start()

    def stop(self) -> None:
        """Stops sending, and waits for the requests in flight."""
        self._stop.set()
        for sender in self._senders:
            sender.join(2 * TIMEOUT_SECONDS)

    def _send_all(self) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=TIMEOUT_SECONDS)
        while True:
            slot, kind, index = self._next()
            if self._stop.wait(max(0.0, slot - self.elapsed)):
                break
            try:
                answer = _ask(connection, kind.png(index))
            except (OSError, http.client.HTTPException) as problem:
                connection.close()  # the next request opens it again
                self._failed(type(problem).__name__)
                continue
            if isinstance(answer, str):
                self._failed(answer)
                continue
            self.answers.append(
                Answer(
                    at=round(self.elapsed, 3),
                    source=kind.name,
                    index=index,
                    truth=None if kind.labels is None else kind.labels[index],
                    class_id=answer["class_id"],
                    label=answer["label"],
                    confidence=answer["confidence"],
                    accepted=answer["accepted"],
                    reason=answer["reason"],
                )
            )
        connection.close()

    def _next(self) -> tuple[float, ImageSet, int]:
        """The next moment to send, and the image. No burst makes up for lost time."""
        with self._turn:
            self._slot = max(self._slot + self._interval, self.elapsed)
            is_foreign = self._random.random() < self._schedule.foreign_share(self._slot)
            kind = self._foreign if is_foreign else self._known
            return self._slot, kind, self._decks[kind.name].draw()

    def _failed(self, why: str) -> None:
        with self._turn:
            self.failures[why] += 1
        self._stop.wait(self._interval)


def _ask(connection: http.client.HTTPConnection, png: bytes) -> dict[str, Any] | str:
    """The answer to one image, or the reason why there is none."""
    connection.request("POST", f"/v1/predict?model={KNOWN}&top_k=1", png, {"Content-Type": "image/png"})
    response = connection.getresponse()
    body = response.read()
    if response.status != http.HTTPStatus.OK:
        return f"HTTP {response.status}"
    prediction: dict[str, Any] = json.loads(body)["predictions"][0]
    return prediction
