"""The shipped alert rules with time running faster: every duration is divided by one number, nothing else changes.

A demonstration cannot wait 15 minutes for an alert. Prometheus therefore gets a copy of docker/prometheus in which
windows, offsets and `for` are `speed` times shorter. Thresholds, expressions and names stay. The scrape and evaluation
intervals become shorter too, but at least one second: a busy machine may need that long for a scrape.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from demo.errors import DemoError

SHIPPED = Path(__file__).parent.parent / "docker" / "prometheus"
JOB = "confgate"
# The alert on what a gate refuses: a pair has one for each reason, a gate of one score has one in all.
PAIR_ALERTS = {"unfamiliar": "ConfgateUnfamiliarRateOff", "unsure": "ConfgateUnsureRateOff"}
ONE_SCORE_ALERT = "ConfgateRejectionRateOff"
RATE = "confgate:policy_refusal_rate:10m"

LEAST_INTERVAL_SECONDS = 1
UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}
DURATION = re.compile(r"(?:\d+(?:ms|[smhdwy]))+")
# Where PromQL has durations: [10m], [1h:1m], offset 15m. Names such as increase10m match neither.
IN_EXPRESSION = re.compile(r"\[[^\]]*\]|\boffset\s+-?" + DURATION.pattern)


@dataclass(frozen=True)
class Timing:
    """The window of the watched alerts, and how long a condition must hold; in seconds of the demonstration."""

    window: float
    hold: float


def seconds(duration: str) -> float:
    """Reads a Prometheus duration: 1h30m → 5400."""
    if not DURATION.fullmatch(duration):
        raise DemoError(f"{duration!r} is not a Prometheus duration; expected one such as 1h30m")
    return sum(int(n) * UNITS[unit] for n, unit in re.findall(r"(\d+)(ms|[smhdwy])", duration)) / 1000


def faster(duration: str, speed: float) -> str:
    """A Prometheus duration, `speed` times shorter."""
    milliseconds = max(1, round(seconds(duration) * 1000 / speed))
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


def faster_interval(duration: str, speed: float) -> str:
    """A scrape or evaluation interval: shorter, but at least LEAST_INTERVAL_SECONDS."""
    return faster(duration, min(speed, seconds(duration) / LEAST_INTERVAL_SECONDS))


def faster_expression(expr: str, speed: float) -> str:
    """A PromQL expression with its durations shortened."""
    return IN_EXPRESSION.sub(lambda place: DURATION.sub(lambda found: faster(found[0], speed), place[0]), expr)


def faster_rules(groups: dict[str, Any], speed: float) -> dict[str, Any]:
    """One parsed rules file with all its durations shortened."""
    return {"groups": [_faster_group(group, speed) for group in groups["groups"]]}


def timing(speed: float) -> Timing:
    """The timing of the watched alerts, which is one for all of them, from the shipped rules."""
    rules = {rule.get("alert") or rule["record"]: rule for rule in _shipped_rules()}
    window = re.search(r"\[([^\]]+)\]", rules[RATE]["expr"])
    assert window is not None
    return Timing(seconds(window[1]) / speed, seconds(rules[ONE_SCORE_ALERT]["for"]) / speed)


def write_configuration(folder: Path, target: str, speed: float) -> Path:
    """Writes prometheus.yml and rules/ under `folder`, for a Prometheus that scrapes `target`."""
    config = yaml.safe_load((SHIPPED / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {key: faster_interval(value, speed) for key, value in config["global"].items()}
    jobs = [job for job in config["scrape_configs"] if job["job_name"] == JOB]
    jobs[0]["static_configs"] = [{"targets": [target]}]
    config["scrape_configs"] = jobs
    del config["alerting"]  # there is no Alertmanager
    rules = folder / "rules"
    rules.mkdir(parents=True, exist_ok=True)
    for file in _rule_files():
        groups = yaml.safe_load(file.read_text(encoding="utf-8"))
        (rules / file.name).write_text(yaml.safe_dump(faster_rules(groups, speed), sort_keys=False), encoding="utf-8")
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def _faster_group(group: dict[str, Any], speed: float) -> dict[str, Any]:
    rules = []
    for rule in group["rules"]:
        held = {key: faster(rule[key], speed) for key in ("for", "keep_firing_for") if key in rule}
        rules.append({**rule, "expr": faster_expression(rule["expr"], speed), **held})
    interval = {"interval": faster_interval(group["interval"], speed)} if "interval" in group else {}
    return {**group, **interval, "rules": rules}


def _rule_files() -> list[Path]:
    return sorted((SHIPPED / "rules").glob("*.yml"))


def _shipped_rules() -> list[dict[str, Any]]:
    return [
        rule
        for file in _rule_files()
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]
