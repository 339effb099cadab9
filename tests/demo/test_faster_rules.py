"""The rules that the demonstration runs are the shipped ones with shorter times."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from demo.errors import DemoError
from demo.faster_rules import (
    ONE_SCORE_ALERT,
    PAIR_ALERTS,
    faster,
    faster_expression,
    faster_rules,
    seconds,
    timing,
    write_configuration,
)
from tests.deploy.shipped import RULE_FILES, need, rules

DURATION = re.compile(r"(?<=\[)\w+(?=\])|(?<=offset )\w+")


def test_every_duration_of_the_shipped_rules_is_divided_and_nothing_else_changes() -> None:
    """Windows, offsets and `for` are 60 times shorter; names, thresholds, labels and annotations are the same."""
    fast = [
        rule
        for file in RULE_FILES
        for group in faster_rules(yaml.safe_load(file.read_text(encoding="utf-8")), 60)["groups"]
        for rule in group["rules"]
    ]
    compared = 0
    for before, after in zip(rules(), fast, strict=True):
        pairs = list(zip(DURATION.findall(before["expr"]), DURATION.findall(after["expr"]), strict=True))
        pairs += [(before["for"], after["for"])] if "for" in before else []
        for long, short in pairs:
            assert seconds(short) == pytest.approx(seconds(long) / 60)
        compared += len(pairs)
        assert DURATION.sub("", before["expr"]) == DURATION.sub("", after["expr"])
        assert {**before, "expr": "", "for": ""} == {**after, "expr": "", "for": ""}
    assert compared > 20


def test_durations_are_read_and_written_as_prometheus_does() -> None:
    """Compound durations and subqueries are shortened; names that contain a duration stay."""
    assert seconds("1h30m") == 5400
    assert (faster("15m", 60), faster("5m", 600), faster("1d", 60)) == ("15s", "500ms", "1440s")
    assert faster_expression("a:rate10m[1h:1m] offset 15m > x[5m]", 60) == "a:rate10m[60s:1s] offset 15s > x[5s]"
    with pytest.raises(DemoError, match="ten"):
        seconds("ten minutes")


def test_the_watched_alert_looks_back_and_holds_as_shipped() -> None:
    """At speed 1 window and `for` are those of the runbook, 10 and 15 minutes, for every alert on refusals."""
    assert (timing(1).window, timing(1).hold) == (600, 900)
    held = {rule["alert"]: rule["for"] for rule in rules() if "alert" in rule and "for" in rule}
    assert {held[alert] for alert in (ONE_SCORE_ALERT, *PAIR_ALERTS.values())} == {"15m"}


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    """promtool accepts configuration and rules, also at a speed that does not divide evenly."""
    program = need("promtool")
    config = write_configuration(tmp_path, "127.0.0.1:1", 77)
    done = subprocess.run([program, "check", "config", str(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 rule files found" in done.stdout
