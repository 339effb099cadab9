"""The wall clock jumps, as after a time server's correction: deadlines do not, for they follow another clock."""

import time
from pathlib import Path

import pytest

from tests.conftest import RED, make_bundle, solid
from tests.faults.processes import label
from tests.service.conftest import HeldService
from tests.service.serving.test_load import wait_for

DAY = 86_400.0


def test_a_clock_that_jumps_changes_no_answer(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day forward and back, requests are answered within deadlines of seconds, images are kept and none younger than
    `capture_days` is deleted, and the drain ends."""
    make_bundle(models)
    service = HeldService(models, capture_dir=tmp_path / "kept", capture_rate=1.0, request_timeout_ms=10_000)
    real = time.time
    try:
        for number, jump in enumerate((0.0, DAY, -DAY, 3 * DAY), 1):
            monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
            assert label(service.client, RED) == "red"
            assert label(service.client, solid((100 + number,) * 3))
            wait_for(lambda number=number: service.metric("confgate_captured_images_total") == number)  # type: ignore[misc]
        assert len(list((tmp_path / "kept").rglob("*.png"))) == 4
        service.server.handle_exit(15, None)
        service.thread.join(60)
        assert not service.thread.is_alive()
    finally:
        service.stop()
