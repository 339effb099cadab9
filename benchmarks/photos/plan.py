"""What a run measures, in which order; and the file that remembers what was measured, so that a run can go on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = "limit"  # the bare processes, measured in the same turns as the servers
Record = Mapping[str, Any]  # one line of records.jsonl


@dataclass(frozen=True)
class Photo:
    """One request body: a JPEG of so many pixels and at most so many bytes."""

    name: str
    width: int
    height: int
    most_bytes: int
    # Few large photos are answered in a second: their turns take so many times the seconds that were asked for.
    closed_times: int
    open_times: int
    # So many requests at once keep every server busy; the open loop's arrivals are shares of what it then answers.
    busy_concurrency: int

    @property
    def file(self) -> str:
        return f"{self.name}.jpg"


PHOTOS = (Photo("400x484", 400, 484, 40_000, 1, 1, 32), Photo("12mp", 4000, 3000, 3_600_000, 3, 2, 8))


@dataclass(frozen=True)
class Turn:
    """One server, one photo, one kind of load, once: the unit of a run. No concurrency: the open loop."""

    round: int
    photo: Photo
    concurrency: int | None
    server: str

    @property
    def key(self) -> tuple[int, str, int | None, str]:
        return (self.round, self.photo.name, self.concurrency, self.server)


def turns(rounds: int, photos: Sequence[Photo], concurrencies: Sequence[int], servers: Sequence[str]) -> Iterator[Turn]:
    """All turns of a run. Servers that are compared follow one another; in each round another one is first.

    The limit is one of `servers`; it has no open loop, because nobody sends it requests.
    """
    for number in range(rounds):
        first = number % max(1, len(servers))
        order = [*servers[first:], *servers[:first]]
        for photo in photos:
            for concurrency in (*concurrencies, None):
                for server in order:
                    if server != LIMIT or concurrency is not None:
                        yield Turn(number, photo, concurrency, server)


class Records:
    """What was measured so far, a JSON line each, appended as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # a run was ended while it wrote
            path.write_text(whole)
        self.all: list[Record] = [json.loads(line) for line in whole.splitlines()]

    def add(self, record: Record) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.all.append(record)

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.all if record["kind"] == kind]

    def done(self) -> set[tuple[int, str, int | None, str]]:
        """The keys of the turns that are on record."""
        return {(r["round"], r["photo"], r["concurrency"], r["server"]) for r in self.of("turn")}
