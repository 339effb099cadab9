"""The state of a run: what the screen shows and the picture draws."""

from dataclasses import asdict, dataclass, field
from typing import Any

from demo.answers import Answer, Tally, between, tally
from demo.faster_rules import Timing
from demo.images import ImageSet
from demo.processes import Gate
from demo.traffic import Schedule
from demo.watching import FIRING, PENDING, Event, Reading


@dataclass
class Run:
    """The settings of a run, and everything recorded so far."""

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
        """The end of the schedule, or the last reading or event after it."""
        seen = [reading.at for reading in self.readings[-1:]] + [event.at for event in self.events[-1:]]
        return max([self.schedule.seconds, *seen])

    def window(self, at: float) -> Tally:
        """Counts of the alert's window that ends at a moment."""
        return tally(between(self.answers, at - self.timing.window, at))

    def firing_at(self, alert: str) -> float | None:
        """When an alert first fired."""
        return next((event.at for event in self.events if event.alert == alert and event.state == FIRING), None)

    def pending_at(self, alert: str) -> float | None:
        """When an alert last became pending before it first fired, or before the end of the run."""
        firing = self.firing_at(alert)
        end = self.ended_at if firing is None else firing
        found = [e.at for e in self.events if e.alert == alert and e.state == PENDING and e.at <= end]
        return found[-1] if found else None

    @property
    def fired(self) -> list[str]:
        """Which of the gate's own alerts fired."""
        return [alert for alert in self.gate.alerts if self.firing_at(alert) is not None]

    def reuse(self) -> str | None:
        """A note if images were sent more than once."""
        notes = []
        for kind in (self.known, self.foreign):
            sent = sum(answer.source == kind.name for answer in self.answers)
            if sent > len(kind):
                notes.append(f"{sent:,} {kind.name} images were sent from {len(kind):,} different ones")
        return "; ".join(notes) or None

    def summary(self) -> dict[str, Any]:
        """summary.json: counts over the whole run, and over its last part with the largest share of OOD images."""
        ramp_end = self.schedule.ramp[1]
        last = [answer for answer in self.answers if answer.at > ramp_end]
        return {
            "model": self.gate.model,
            "version": self.gate.version,
            "score": self.gate.score,
            "policy": self.gate.policy,
            "expected_rejection_rate": self.gate.expected_rejection_rate,
            "expected_refusals": {watched.reason: watched.expected for watched in self.gate.watched},
            "known": {"name": self.known.name, "images": len(self.known), "from": self.known.where},
            "foreign": {"name": self.foreign.name, "images": len(self.foreign), "from": self.foreign.where},
            "reused": self.reuse(),
            "seconds": round(self.ended_at, 3),
            "largest_foreign_share": self.schedule.largest_share,
            "speed": self.speed,
            "watched_by": self.watched_by,
            "alerts": [
                {"name": alert, "pending_at": self.pending_at(alert), "firing_at": self.firing_at(alert)}
                for alert in self.gate.alerts
            ],
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
