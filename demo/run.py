"""Everything known about a run so far: what the screen shows and the picture draws."""

from dataclasses import asdict, dataclass, field
from typing import Any

from demo.answers import Answer, Tally, between, tally
from demo.faster_rules import ALERT, Timing
from demo.images import ImageSet
from demo.processes import Gate
from demo.traffic import Schedule
from demo.watching import FIRING, PENDING, Event, Reading


@dataclass
class Run:
    gate: Gate
    known: ImageSet
    foreign: ImageSet
    schedule: Schedule
    timing: Timing
    speed: float
    watched_by: str
    answers: list[Answer]
    readings: list[Reading] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def ended_at(self) -> float:
        """The end of the schedule, or of what was seen after it."""
        seen = [reading.at for reading in self.readings[-1:]] + [event.at for event in self.events[-1:]]
        return max([self.schedule.seconds, *seen])

    def window(self, at: float) -> Tally:
        """The answers of the alert's window before a moment."""
        return tally(between(self.answers, at - self.timing.window, at))

    @property
    def firing_at(self) -> float | None:
        """When the watched alert fired first."""
        return next((event.at for event in self.events if event.alert == ALERT and event.state == FIRING), None)

    @property
    def pending_at(self) -> float | None:
        """When it began to be pending: the time that led to its firing, or, if it never fired, the last."""
        end = self.ended_at if self.firing_at is None else self.firing_at
        found = [e.at for e in self.events if e.alert == ALERT and e.state == PENDING and e.at <= end]
        return found[-1] if found else None

    def reuse(self) -> str | None:
        """What must be said where images were sent more than once."""
        told = []
        for kind in (self.known, self.foreign):
            sent = sum(answer.source == kind.name for answer in self.answers)
            if sent > len(kind):
                told.append(f"{sent:,} {kind.name} images were sent from {len(kind):,} different ones")
        return "; ".join(told) or None

    def summary(self) -> dict[str, Any]:
        """summary.json: counted over the whole run, and over its last part with the largest foreign share."""
        ramp_end = self.schedule.ramp[1]
        last = [answer for answer in self.answers if answer.at > ramp_end]
        return {
            "model": self.gate.model,
            "version": self.gate.version,
            "score": self.gate.score,
            "policy": self.gate.policy,
            "expected_rejection_rate": self.gate.expected_rejection_rate,
            "known": {"name": self.known.name, "images": len(self.known), "from": self.known.where},
            "foreign": {"name": self.foreign.name, "images": len(self.foreign), "from": self.foreign.where},
            "reused": self.reuse(),
            "seconds": round(self.ended_at, 3),
            "largest_foreign_share": self.schedule.largest_share,
            "speed": self.speed,
            "watched_by": self.watched_by,
            "alert": {"name": ALERT, "pending_at": self.pending_at, "firing_at": self.firing_at},
            "events": [asdict(event) for event in self.events],
            "failed_requests": self.failures,
            "whole_run": tally(self.answers).as_dict(),
            "after": {"seconds": ramp_end, **tally(last).as_dict()},
        }


def clock(seconds: float) -> str:
    """83.4 → 1:23"""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{share * 100:.{digits}f} %"
