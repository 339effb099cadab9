"""What the demonstration says that an operator would have seen."""

from pathlib import Path

import numpy as np
import pytest

from demo.answers import Answer, newest
from demo.faster_rules import PAIR_ALERTS, Timing
from demo.images import ImageSet
from demo.operator_view import timeline, verdict
from demo.picture import draw
from demo.processes import Gate, Watched
from demo.run import Run
from demo.traffic import Schedule
from demo.watching import ENDED, FIRING, PENDING, Event, OwnWatch, Reading, Share, changes

UNFAMILIAR, UNSURE = PAIR_ALERTS.values()
PAIR = (Watched("unfamiliar", 0.05, UNFAMILIAR), Watched("unsure", 0.1, UNSURE))
IMAGES = ImageSet("cifar10", np.zeros((4, 8, 8, 3), np.uint8), (0, 0, 0, 0), "made up")
FOREIGN = ImageSet("uniform", np.zeros((4, 8, 8, 3), np.uint8), None, "made up")


def answer(at: float, reason: str | None, truth: int | None = 0, index: int = 0) -> Answer:
    return Answer(at, "cifar10", index, truth, 0, "cat", 0.5, reason is None, reason)


def run_with(watched: tuple[Watched, ...], *events: Event) -> Run:
    gate = Gate("m", 1, "pair", "balanced", 0.15, 5000, ("cat",), (), watched)
    run = Run(gate, IMAGES, FOREIGN, Schedule(100, 0.5), Timing(10, 15), 60, "a test", [answer(1, None)])
    run.readings = [
        Reading(50, {"unfamiliar": Share(0.05, 0.2, 0.04, 400), "unsure": Share(0.1, 0.11, 0.03, 400)}),
        Reading(90, {"unfamiliar": Share(0.05, 0.3, 0.04, 400), "unsure": Share(0.1, 0.12, 0.03, 400)}),
    ]
    run.events = list(events)
    return run


def test_an_operator_is_told_which_alert_said_what_and_which_was_silent() -> None:
    """The timeline has each change with the share at that moment, other alerts too, and the silent one at the end."""
    run = run_with(
        PAIR, Event(50, UNFAMILIAR, PENDING), Event(70, "ConfgateShedding", FIRING), Event(90, UNFAMILIAR, FIRING)
    )
    assert [line.split(maxsplit=1) for line in timeline(run)] == [
        ["0:50", "ConfgateUnfamiliarRateOff pending: 20.0 % unfamiliar, expected 5.0 ± 4.0 %"],
        ["1:10", "ConfgateShedding firing"],
        ["1:30", "ConfgateUnfamiliarRateOff firing: 30.0 % unfamiliar, expected 5.0 %"],
        ["–", "ConfgateUnsureRateOff silent: 12.0 % unsure at the end, expected 10.0 ± 3.0 %"],
    ]


@pytest.mark.parametrize(
    ("watched", "fired", "says"),
    [
        (PAIR, (), "No alert"),
        (PAIR, (UNFAMILIAR,), "Unfamiliar, not unsure"),
        (PAIR, (UNSURE,), "Ask a person"),
        (PAIR, (UNFAMILIAR, UNSURE), "Unfamiliar and unsure"),
        (
            (Watched("unfamiliar", 0.1, "ConfgateRejectionRateOff"),),
            ("ConfgateRejectionRateOff",),
            "one score cannot say",
        ),
    ],
)
def test_the_verdict_follows_from_what_fired(watched: tuple[Watched, ...], fired: tuple[str, ...], says: str) -> None:
    """Which alerts fired tells foreign images from hard ones, if the gate asks both questions."""
    assert says in verdict(run_with(watched, *(Event(60, alert, FIRING) for alert in fired)))


def test_each_reason_is_judged_alone_without_prometheus() -> None:
    """Of images that are all unsure, only the alert on unsure images is pending, fires after its time, and ends."""
    gate = Gate("m", 1, "pair", "balanced", 0.15, 5000, ("cat",), (), PAIR)
    answers = [
        answer(0.1 * i, "unsure" if i % 4 == 0 else "unfamiliar" if i % 20 == 1 else None) for i in range(1, 400)
    ]
    answers += [
        answer(40 + 0.1 * i, "unsure" if i % 10 == 0 else "unfamiliar" if i % 20 == 1 else None) for i in range(200)
    ]
    watch, readings = OwnWatch(answers, gate, Timing(10, 15)), [Reading(0)]
    events = []
    for at in (10, 20, 30, 60):
        readings.append(watch.read(at))
        events += changes(readings[-2], readings[-1])
    assert [(event.alert, event.state) for event in events] == [(UNSURE, PENDING), (UNSURE, FIRING), (UNSURE, ENDED)]
    assert readings[1].shares["unsure"].rate == pytest.approx(0.25)
    assert readings[1].shares["unfamiliar"].rate == pytest.approx(0.05)


def test_an_image_that_is_sent_again_and_again_is_shown_once() -> None:
    """Each picture of a row is another image, the newest first; a refusal for another reason is not in it."""
    sent = [(1, 3), (2, 1), (3, 1), (4, 2), (5, 1), (6, 3)]
    answers = [answer(at, "unsure", index=index) for at, index in sent] + [answer(7, "unfamiliar", index=4)]
    assert [(one.at, one.index) for one in newest(answers, "unsure", 2)] == [(6, 3), (5, 1)]
    assert [one.index for one in newest(answers, "unsure", 9)] == [3, 1, 2]
    assert newest(answers, None, 9) == []


def test_a_long_timeline_still_makes_a_picture(tmp_path: Path) -> None:
    """Many changes of other alerts are cut in the middle, and the picture stays of one size."""
    sizes = set()
    for n in (20, 40):
        run = run_with(PAIR, *(Event(at, "ConfgateShedding", FIRING) for at in range(n)))
        draw(run, tmp_path / f"{n}.png")
        sizes.add(_size(tmp_path / f"{n}.png"))
    assert len(sizes) == 1


def _size(path: Path) -> bytes:
    return path.read_bytes()[16:24]  # width and height in a PNG's header
