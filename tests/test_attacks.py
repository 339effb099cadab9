"""`make attacks` in small: what it measures, and what it calls missed."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

from benchmarks.attacks.attacks import Attack, all_attacks, post
from benchmarks.attacks.client import Seen
from benchmarks.attacks.files import many_scans
from benchmarks.attacks.measure import (
    HEALTH,
    LARGE,
    SMALL,
    TOGETHER,
    Latency,
    Outcome,
    latency,
    measure,
    write_requests,
)
from benchmarks.attacks.report import Budgets, heading, missed, row
from tests.conftest import ROOT, make_bundle
from tests.running_service import Service


def test_an_attack_and_the_other_clients_are_all_answered(models: Path, tmp_path: Path) -> None:
    """The attacker gets its 413s, and the others are measured meanwhile, each in a process of its own."""
    make_bundle(models)
    attack, request = Attack("scans", lambda: post("image/jpeg", many_scans(side=1000)), 4), tmp_path / "attack"
    request.write_bytes(attack.make())
    service = Service(models).wait_until_serving()
    try:
        port = int(service.url.rpartition(":")[2])
        outcome = measure(service.process.pid, port, attack, TOGETHER, 1.0, request, write_requests(tmp_path))
    finally:
        service.stop()
    assert set(outcome.statuses) == {413}
    assert all(client.requests > 0 and not client.lost for client in outcome.others.values())
    assert outcome.peak_bytes >= outcome.idle_bytes > 10_000_000
    assert outcome.cpu_seconds > 0
    assert row(outcome, Budgets(1, 1)).count("|") == heading().splitlines()[0].count("|")


def test_each_goal_is_missed_by_its_own_name() -> None:
    """An outcome names the goals that it does not meet, and only those."""
    outcome = Outcome("any", TOGETHER, Counter({413: 1}), {}, 400_000_000, 500_000_000, 1.0)
    outcome.others = {name: Latency(100, [10.0] * 100) for name in (HEALTH, SMALL, LARGE)}
    assert missed(outcome, Budgets(0, 0)) == []
    outcome.others[HEALTH] = Latency(100, [10.0] * 98 + [101.0] * 2)
    outcome.others[SMALL] = Latency(100, [10.0] * 95 + [251.0] * 5)  # p95 is the 95th of 100
    outcome.others[LARGE] = Latency(100, [10.0] * 94 + [251.0] * 6, Counter({429: 1}))
    outcome.peak_bytes = 700_000_001
    assert missed(outcome, Budgets(0, 0)) == [
        "health p99 ≤ 100 ms",
        "400 × 400 PNG p95 ≤ 250 ms",
        "none lost",
        "memory",
    ]


def test_a_long_silence_counts_for_its_length() -> None:
    """One health check that takes 50 ms stands for the four that should have been sent meanwhile."""
    found = latency([Seen(0.0, 2.0, 200), Seen(0.01, 50.0, 200)], pause=0.01, by_clock=True)
    assert found.requests == 2
    assert found.milliseconds == [2.0, 50.0, 40.0, 30.0, 20.0, 10.0]


def test_an_unknown_attack_is_named_with_those_there_are() -> None:
    """A name that no attack has is an error that lists them; no name is used twice."""
    names = [attack.name for attack in all_attacks()]
    assert len(set(names)) == len(names)
    command = [sys.executable, "-m", "benchmarks.attacks", "--only", "nothing"]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert outcome.returncode == 2
    assert all(name in outcome.stderr for name in names)
