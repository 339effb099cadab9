"""Watches the rejection rate, its band and the alerts: in Prometheus, or from the answers if it is not installed.

Both return a Reading. With Prometheus every value is its own. Without, the demonstration computes the rule's condition
itself; a test compares that formula with what Prometheus records.
"""

import math
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from demo.answers import Answer, between, tally
from demo.errors import DemoError
from demo.faster_rules import ALERT, RATE, Timing
from demo.processes import START_TIMEOUT_SECONDS, Gate
from demo.web import get_json

IMAGES = "confgate:policy_images:increase10m"
EXPECTED = "confgate:policy_expected_rejection_rate"
TOLERANCE = "confgate:policy_rejection_rate:tolerance"
RECORDED = (RATE, IMAGES, EXPECTED, TOLERANCE)
LEAST_IMAGES = 30  # the rule ignores windows with fewer

PENDING, FIRING, ENDED = "pending", "firing", "ended"


@dataclass(frozen=True)
class Reading:
    """The values at one moment; times are seconds since the traffic began."""

    at: float
    expected: float
    rate: float | None = None  # refused share in the window
    tolerance: float | None = None
    images: float = 0.0  # in the window
    alerts: dict[str, tuple[str, float]] = field(default_factory=dict)  # name → (pending or firing, since)

    @property
    def outside(self) -> bool:
        """Whether the rate is outside the band, with enough images to judge."""
        if self.rate is None or self.tolerance is None or self.images < LEAST_IMAGES:
            return False
        return abs(self.rate - self.expected) > self.tolerance


@dataclass(frozen=True)
class Event:
    """A change of an alert's state."""

    at: float
    alert: str
    state: str


class Watch(Protocol):
    """A source of readings."""

    source: str

    def begin(self, wall: float) -> None:
        """Traffic begins now, at this wall-clock time."""

    def read(self, at: float) -> Reading: ...


class PrometheusWatch:
    """Reads the recorded series and the alerts of Prometheus."""

    source = "Prometheus"

    def __init__(self, url: str, gate: Gate, timing: Timing) -> None:
        self._url, self._gate, self._began = url, gate, 0.0
        names = "|".join(RECORDED)
        chosen = (
            f'{{__name__=~"{names}",model="{gate.model}",version="{gate.version}",'
            f'policy="{gate.policy}",score="{gate.score}"}}'
        )
        self._query = f"{chosen}[{max(3000, round(timing.window * 500))}ms]"
        self._firing_since: dict[tuple[str, float], float] = {}

    def wait_until_scraping(self) -> None:
        """Waits for the first scrape, some seconds after the start: Prometheus would miss earlier traffic."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not self._get("query", query=EXPECTED)["result"]:
            if time.monotonic() > deadline:
                raise DemoError(
                    f"Prometheus recorded nothing from the service in {START_TIMEOUT_SECONDS} seconds. "
                    f"See {self._url}/targets and its log for the reason."
                )
            time.sleep(0.2)

    def begin(self, wall: float) -> None:
        self._began = wall

    def read(self, at: float) -> Reading:
        found = self._get("query", query=self._query)["result"]
        series = {one["metric"]["__name__"]: {t: float(value) for t, value in one["values"]} for one in found}
        common = set.intersection(*map(set, series.values())) if len(series) == len(RECORDED) else set()
        alerts = self._alerts(at)
        if not common:
            return Reading(at, self._gate.expected_rejection_rate, alerts=alerts)
        # The newest moment at which all four series have a value.
        newest = max(common)
        now = {name: values[newest] for name, values in series.items()}
        return Reading(newest - self._began, now[EXPECTED], now[RATE], now[TOLERANCE], now[IMAGES], alerts)

    def _alerts(self, at: float) -> dict[str, tuple[str, float]]:
        alerts: dict[str, tuple[str, float]] = {}
        for alert in self._get("alerts")["alerts"]:
            name, state = alert["labels"]["alertname"], alert["state"]
            since = datetime.fromisoformat(alert["activeAt"]).timestamp() - self._began
            if state == FIRING:  # Prometheus reports since when it is active, not since when it fires
                since = self._firing_since.setdefault((name, since), at)
            if name not in alerts or state == FIRING:
                alerts[name] = (state, since)
        return alerts

    def _get(self, what: str, **query: str) -> Any:
        answer = get_json(f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(query)}")
        if answer["status"] != "success":
            raise DemoError(f"Prometheus rejected {what}: {answer.get('error')}")
        return answer["data"]


class OwnWatch:
    """Without Prometheus: judges the condition of the one rule from the answers, and no other alert."""

    source = "the demonstration itself, from the answers (no Prometheus)"

    def __init__(self, answers: Sequence[Answer], gate: Gate, timing: Timing) -> None:
        self._answers, self._gate, self._timing = answers, gate, timing
        self._outside_since: float | None = None

    def begin(self, wall: float) -> None:
        pass  # answers carry their time since then

    def read(self, at: float) -> Reading:
        seen, expected = tally(between(self._answers, at - self._timing.window, at)), self._gate.expected_rejection_rate
        rate = seen.refused_share
        if rate is None:
            return Reading(at, expected)
        reading = Reading(
            at, expected, rate, tolerance(rate, seen.images, expected, self._gate.calibration_images), seen.images
        )
        if not reading.outside:
            self._outside_since = None
            return reading
        if self._outside_since is None:
            self._outside_since = at
        fires = self._outside_since + self._timing.hold
        alert = (FIRING, fires) if at >= fires else (PENDING, self._outside_since)
        return Reading(at, expected, rate, reading.tolerance, seen.images, {ALERT: alert})


def tolerance(rate: float, images: float, expected: float, calibration_images: float) -> float:
    """The band of docker/prometheus/rules/rejection.yml: max(2 points, e / 4, 4 standard errors)."""
    pooled = (rate * images + expected * calibration_images) / (images + calibration_images)
    standard_error = math.sqrt(pooled * (1 - pooled) * (1 / images + 1 / calibration_images))
    return max(0.02, expected / 4, 4 * standard_error)


def changes(before: Reading | None, now: Reading) -> list[Event]:
    """The changes of the alerts between two readings."""
    past = before.alerts if before is not None else {}
    events = []
    for name, (state, since) in now.alerts.items():
        if past.get(name, ("", 0))[0] != state:
            events.append(Event(since, name, state))
    events += [Event(now.at, name, ENDED) for name in past if name not in now.alerts]
    return sorted(events, key=lambda event: event.at)
