"""The answer to each image, and the shares computed from them: refused, and accuracy with and without a gate.

An OOD image (`foreign` here) has no correct class, so any answer to it is wrong. With a gate only the accepted ones
count as errors; without a gate all of them do.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Answer:
    """One image and its answer; a line of answers.jsonl."""

    at: float  # seconds since the traffic began
    source: str  # the name of the image's set
    index: int  # of the image in that set
    truth: int | None  # its class; None for an OOD image
    class_id: int  # the model's class
    label: str
    confidence: float | None  # None: the model has no confidence branch
    accepted: bool
    reason: str | None  # why it was refused: unfamiliar or unsure; None if it was accepted

    @property
    def foreign(self) -> bool:
        return self.truth is None

    @property
    def right(self) -> bool:
        return self.class_id == self.truth


@dataclass(frozen=True)
class Tally:
    """Counts over some answers, and shares of them (None if there is nothing to divide by)."""

    images: int = 0
    foreign: int = 0
    right: int = 0
    accepted: int = 0
    accepted_foreign: int = 0
    accepted_right: int = 0
    unfamiliar: int = 0
    unsure: int = 0
    unfamiliar_foreign: int = 0
    unsure_foreign: int = 0

    @property
    def refused_share(self) -> float | None:
        return _share(self.images - self.accepted, self.images)

    def share_refused_as(self, reason: str) -> float | None:
        """The share of all images that is refused for this reason."""
        return _share(self.unfamiliar if reason == "unfamiliar" else self.unsure, self.images)

    @property
    def foreign_share(self) -> float | None:
        return _share(self.foreign, self.images)

    @property
    def accuracy_of_accepted(self) -> float | None:
        return _share(self.accepted_right, self.accepted)

    @property
    def accuracy_without_gate(self) -> float | None:
        return _share(self.right, self.images)

    @property
    def foreign_refused_share(self) -> float | None:
        return _share(self.foreign - self.accepted_foreign, self.foreign)

    def as_dict(self) -> dict[str, float | None]:
        shares = ("refused_share", "accuracy_of_accepted", "accuracy_without_gate", "foreign_refused_share")
        return asdict(self) | {name: getattr(self, name) for name in shares}


def tally(answers: Iterable[Answer]) -> Tally:
    """Counts the answers."""
    counts: Counter[str] = Counter()
    for answer in answers:
        decision = "accepted" if answer.accepted else answer.reason or ""
        counts["images"] += 1
        counts["foreign"] += answer.foreign
        counts["right"] += answer.right
        counts[decision] += 1
        counts[f"{decision}_foreign"] += answer.foreign
        if answer.accepted:
            counts["accepted_right"] += answer.right
    return Tally(**counts)


def between(answers: Sequence[Answer], start: float, end: float) -> list[Answer]:
    """The answers after `start` and up to `end`. Searches from the newest: the window is short."""
    found = []
    for answer in reversed(answers):
        # Four senders append to one list, so neighbours may be slightly out of order.
        if answer.at < start - 1:
            break
        if start < answer.at <= end:
            found.append(answer)
    return found[::-1]


def newest(answers: Sequence[Answer], reason: str | None, count: int) -> list[Answer]:
    """The newest answers with this reason, newest first, one an image: few images are sent again and again."""
    found: dict[tuple[str, int], Answer] = {}
    for answer in reversed(answers):
        if len(found) == count:
            break
        if answer.reason == reason:
            found.setdefault((answer.source, answer.index), answer)
    return list(found.values())


def write_lines(path: Path, rows: Iterable[object]) -> None:
    """Writes rows as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
