"""Prometheus' and Alertmanager's configuration, and the alerts, checked by their own tools."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from service.model.scores import HISTOGRAM_EDGES
from tests.deploy.shipped import PROMETHEUS, ROOT, need, rules

ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RULE_TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_accepts_its_configuration() -> None:
    """promtool finds nothing wrong with prometheus.yml and the rules that it loads."""
    run(need("promtool"), "check", "config", str(PROMETHEUS / "prometheus.yml"))


@pytest.mark.parametrize("file", RULE_TESTS, ids=lambda file: file.stem)
def test_alerts_fire_and_stay_silent(file: Path) -> None:
    """Each alert fires where its cases say so, and stays silent where they say so."""
    run(need("promtool"), "test", "rules", str(file))


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_cases(alert: str) -> None:
    """For each alert there is a case in which it fires, and a whole test in which it never does."""
    fires = silent = False
    for file in RULE_TESTS:
        for test in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]:
            cases = [case["exp_alerts"] for case in test["alert_rule_test"] if case["alertname"] == alert]
            fires = fires or any(cases)
            silent = silent or (bool(cases) and not any(cases))
    assert fires, f"{alert} fires in no test"
    assert silent, f"{alert} stays silent in no test"


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_runbook(alert: str) -> None:
    """Each alert says what is wrong, how bad it is, and links to a section of the runbook that exists."""
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
    file, anchor = rule["annotations"]["runbook"].split("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor == alert.lower()
    assert alert in headings


def test_drift_ranges_are_the_services_edges() -> None:
    """The edges that the drift rules are written for are among those the service counts with."""
    (share,) = (rule["expr"] for rule in rules() if rule.get("record") == "confgate:confidence_share:1h")
    edges = {float(edge) for edge in re.findall(r'le="([^"]*)"', share)}
    assert edges - {float("inf")} <= set(HISTOGRAM_EDGES)
    ranges = re.findall(r'"bin", "([^"]*)"', share)
    assert len(ranges) == len(edges) == 12
    # The degrees of freedom of the rule for z.
    (z,) = (rule["expr"] for rule in rules() if rule.get("record") == "confgate:confidence_psi:z")
    assert re.findall(r"\b11\b", z) == ["11", "11"]


def test_alertmanager_accepts_its_configuration() -> None:
    """amtool finds nothing wrong with alertmanager.yml."""
    run(need("amtool"), "check-config", str(ROOT / "docker" / "alertmanager" / "alertmanager.yml"))


def test_inhibitions_name_alerts_that_exist() -> None:
    """Alertmanager's inhibitions speak of alerts that Prometheus has."""
    text = (ROOT / "docker" / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\bConfgate\w+", text)) <= set(ALERTS)
