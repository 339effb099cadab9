"""Watches what is refused for each reason, its band and the alerts: in Prometheus, or from the answers without it.

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
from demo.faster_rules import RATE, Timing
from demo.processes import START_TIMEOUT_SECONDS, Gate
from demo.web import get_json

IMAGES = "confgate:policy_images:increase10m"
EXPECTED = "confgate:policy_expected_refusals"
TOLERANCE = "confgate:policy_refusal_rate:tolerance"
RECORDED = (RATE, EXPECTED, TOLERANCE)  # for each reason
LEAST_IMAGES = 30  # the rules ignore windows with fewer

PENDING, FIRING, ENDED = "pending", "firing", "ended"


@dataclass(frozen=True)
class Share:
    """The share of the window's images that is refused for one reason, and what calibration expects of it."""

    expected: float
    rate: float
    tolerance: float
    images: float  # in the window

    @property
    def outside(self) -> bool:
        """Whether the rate is outside the band, with enough images to judge."""
        return self.images >= LEAST_IMAGES and abs(self.rate - self.expected) > self.tolerance


@dataclass(frozen=True)
class Reading:
    """The values at one moment; times are seconds since the traffic began."""

    at: float
    shares: dict[str, Share] = field(default_factory=dict)  # by reason; empty while nothing is known
    alerts: dict[str, tuple[str, float]] = field(default_factory=dict)  # name → (pending or firing, since)

    @property
    def outside(self) -> bool:
        return any(share.outside for share in self.shares.values())

    @property
    def images(self) -> float:
        return max((share.images for share in self.shares.values()), default=0.0)


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
        names = "|".join((*RECORDED, IMAGES))
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
        series = {
            (one["metric"]["__name__"], one["metric"].get("reason")): {t: float(value) for t, value in one["values"]}
            for one in found
        }
        reasons = [watched.reason for watched in self._gate.watched]
        needed = [(IMAGES, None), *((name, reason) for name in RECORDED for reason in reasons)]
        common = set.intersection(*(set(series.get(key, ())) for key in needed))
        alerts = self._alerts(at)
        if not common:
            return Reading(at, alerts=alerts)
        newest = max(common)  # the newest moment at which all series have a value
        shares = {
            reason: Share(
                series[EXPECTED, reason][newest],
                series[RATE, reason][newest],
                series[TOLERANCE, reason][newest],
                series[IMAGES, None][newest],
            )
            for reason in reasons
        }
        return Reading(newest - self._began, shares, alerts)

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
    """Without Prometheus: judges the conditions of the gate's own alerts from the answers, and no other alert."""

    source = "the demonstration itself, from the answers (no Prometheus)"

    def __init__(self, answers: Sequence[Answer], gate: Gate, timing: Timing) -> None:
        self._answers, self._gate, self._timing = answers, gate, timing
        self._outside_since: dict[str, float] = {}

    def begin(self, wall: float) -> None:
        pass  # answers carry their time since then

    def read(self, at: float) -> Reading:
        seen = tally(between(self._answers, at - self._timing.window, at))
        reading = Reading(at)
        for watched in self._gate.watched:
            rate, expected = seen.share_refused_as(watched.reason), watched.expected
            if rate is None:
                continue
            band = tolerance(rate, seen.images, expected, self._gate.calibration_images)
            share = reading.shares[watched.reason] = Share(expected, rate, band, seen.images)
            if not share.outside:
                self._outside_since.pop(watched.alert, None)
                continue
            since = self._outside_since.setdefault(watched.alert, at)
            fires = since + self._timing.hold
            reading.alerts[watched.alert] = (FIRING, fires) if at >= fires else (PENDING, since)
        return reading


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
