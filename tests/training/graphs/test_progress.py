"""What shows how far a calibration is: a live line on a terminal, plain lines now and then without one."""

import io

import pytest
from rich.console import Console

from training.graphs import progress
from training.graphs.progress import counting_images, how_far, images_done, pass_begins


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def shown(force_terminal: bool, seconds_each: float, monkeypatch: pytest.MonkeyPatch) -> str:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    console = Console(file=io.StringIO(), force_terminal=force_terminal, width=100)
    with counting_images(console, "calibrating"):
        pass_begins("choosing ε", 2_000)
        for _ in range(4):
            clock.now += seconds_each
            images_done(500)
    images_done(500)  # the block has ended
    return console.file.getvalue()


def test_a_terminal_shows_the_count(monkeypatch, capsys):
    """On a terminal there is one live line, and nothing on stderr."""
    assert "calibrating" in shown(True, 10, monkeypatch)
    assert capsys.readouterr().err == ""


def test_a_log_gets_a_line_now_and_then(monkeypatch, capsys):
    """The first line comes after a few seconds, others every 15 s, the last at the end; stdout stays clean."""
    assert shown(False, 10, monkeypatch) == ""
    assert capsys.readouterr().err.splitlines() == [
        "calibrating, choosing ε: 500 of 2,000 images, 50 images/s, 30 s left",
        "calibrating, choosing ε: 1,500 of 2,000 images, 50 images/s, 10 s left",
        "calibrating: done, 2,000 images in all passes, 40 s",
    ]


def test_what_is_done_at_once_needs_no_line(monkeypatch, capsys):
    """A pass of a second says nothing."""
    assert shown(False, 0.2, monkeypatch) == ""
    assert capsys.readouterr().err == ""


def test_slow_and_fast_passes_are_told_in_readable_numbers():
    """Rates below ten have a second digit, and nothing is divided by zero before the first image."""
    assert how_far(2, 10, 8) == "2 of 10 images, 0.25 images/s, 32 s left"
    assert how_far(3_000, 9_000, 1) == "3,000 of 9,000 images, 3,000 images/s, 2 s left"
    assert how_far(0, 10, 0) == "0 of 10 images, 0 images/s"
