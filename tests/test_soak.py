"""A few seconds of `make soak`: valid and hostile clients together, on a tiny model."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, make_bundle


def test_a_short_soak_finds_nothing(models: Path, tmp_path: Path) -> None:
    """Bombs, slow bodies, disconnects and the rest: every request gets one correct answer, and the service survives."""
    make_bundle(models)
    command = [sys.executable, "-m", "benchmarks.soak", "--seconds", "5", "--polite", "12", "--hostile", "12"]
    outcome = subprocess.run(
        [*command, "--models", str(models), "--out", str(tmp_path / "report"), "--untimed"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["violations"] == []
    # Every kind was sent at least twice, before and after; valid requests were answered in between.
    assert len(report["by_kind"]) > 25
    assert all(sum(counts.values()) >= 2 for counts in report["by_kind"].values())
    assert report["by_kind"]["proper request"]["200"] >= 12
