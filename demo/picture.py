"""The picture of a run: what was sent, what was refused, the accuracy of the rest, and a few of the images."""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from PIL import Image

from demo.answers import Answer, Tally
from demo.faster_rules import ALERT
from demo.run import Run, clock, percent
from demo.watching import ENDED, FIRING, PENDING, Reading

INK, QUIET, GRID = "#22262b", "#6b7280", "#e5e7eb"
GREEN, ORANGE, PURPLE, BLUE = "#15803d", "#d97706", "#7c3aed", "#1d4ed8"
AMBER, RED = "#f59e0b", "#dc2626"
LEAST_FOR_A_POINT = 30  # accepted images that a window needs to be drawn
LABEL_WIDTH = 0.4  # share of the time axis that the words beneath a curve take
THUMBNAILS = 12
FOOTNOTE_WIDTH = 165  # characters in a line as wide as the picture


def draw(run: Run, path: Path) -> None:
    """Writes the picture as PNG."""
    figure = Figure(figsize=(10, 10.6), layout="constrained", facecolor="white")
    parts = figure.subfigures(4, 1, height_ratios=[0.75, 7.0, 2.35, 0.55])
    assert isinstance(parts, np.ndarray)
    head, charts, images, foot = parts
    head.text(0.015, 0.62, _headline(run), fontsize=15, fontweight="bold", color=INK, va="center")
    head.text(0.015, 0.1, _subtitle(run), fontsize=10, color=QUIET, va="center")
    refused, accuracy, mixture = charts.subplots(3, 1, sharex=True, height_ratios=[3, 3, 1.2])
    windows = [(reading, run.window(reading.at)) for reading in run.readings if reading.at > 0]
    _draw_refused(refused, run)
    _draw_accuracy(accuracy, windows)
    _draw_mixture(mixture, run, windows)
    for axis in (refused, accuracy, mixture):
        _quiet(axis, 2 if axis is mixture else 5)
        axis.set_xlim(0, run.ended_at)
        axis.axvline(run.schedule.ramp[0], color=QUIET, linewidth=0.8, linestyle=(0, (2, 3)))
    mixture.xaxis.set_major_locator(MaxNLocator(9, steps=[1, 1.5, 3, 6, 10]))
    mixture.xaxis.set_major_formatter(FuncFormatter(lambda value, _: clock(value)))
    mixture.set_xlabel("minutes : seconds of the run", fontsize=9, color=QUIET)
    _draw_images(images, run)
    foot.text(0.015, 0.5, _footnote(run), fontsize=8, color=QUIET, va="center", linespacing=1.5)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100)
    with Image.open(drawn) as picture:
        # A third of the bytes, with no visible difference.
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, "PNG", optimize=True)


def _headline(run: Run) -> str:
    foreign, firing = _pretty(run.foreign.name), run.firing_at
    if firing is None:
        return f"{foreign} mixed into CIFAR-10 traffic, and no alert"
    return f"{foreign} creeps into CIFAR-10 traffic: the gate refuses it, the alert fires"


def _subtitle(run: Run) -> str:
    gate, images = run.gate, len(run.answers)
    return (
        f"{gate.model} version {gate.version}, policy {gate.policy} on {gate.compared}; "
        f"{images:,} images, one per request; every curve covers the last {run.timing.window:g} s"
    )


def _draw_refused(axis: Axes, run: Run) -> None:
    shown = [reading for reading in run.readings if reading.rate is not None and reading.tolerance is not None]
    at = np.array([reading.at for reading in shown])
    rate = np.array([reading.rate for reading in shown])
    expected = np.array([reading.expected for reading in shown])
    band = np.array([reading.tolerance for reading in shown])
    _title(axis, "Refused share, and what the alert rule tolerates")
    axis.fill_between(at, np.maximum(expected - band, 0), expected + band, color=GREEN, alpha=0.13, linewidth=0)
    axis.axhline(run.gate.expected_rejection_rate, color=GREEN, linewidth=1, linestyle=(0, (5, 3)))
    axis.plot(at, rate, color=BLUE, linewidth=2)
    axis.set_ylim(0, min(1, max([0.5, *rate]) * 1.2))
    axis.text(
        run.ended_at * 0.995, run.gate.expected_rejection_rate - 0.015,
        f"expected by calibration: {percent(run.gate.expected_rejection_rate)}", color=GREEN, fontsize=9, ha="right",
        va="top",
    )  # fmt: skip
    _draw_alert(axis, run)


def _draw_alert(axis: Axes, run: Run) -> None:
    """Shades the states of the watched alert, with a label at the start of each."""
    events = [event for event in run.events if event.alert == ALERT]
    for i, event in enumerate(events):
        end = events[i + 1].at if i + 1 < len(events) else run.ended_at
        if event.state == ENDED:
            continue
        colour = {PENDING: AMBER, FIRING: RED}[event.state]
        axis.axvspan(event.at, end, color=colour, alpha=0.13, linewidth=0)
    top = axis.get_ylim()[1]
    for state, colour, at in ((PENDING, AMBER, run.pending_at), (FIRING, RED, run.firing_at)):
        if at is not None:
            late = at > 0.8 * run.ended_at  # no room on the right
            side, height = ("right", 0.85) if state == FIRING and late else ("left", 0.95)
            side = "right" if state == PENDING else side
            axis.axvline(at, color=colour, linewidth=1.4)
            shift = run.ended_at * (-0.006 if side == "right" else 0.006)
            words = f"{'alert fires' if state == FIRING else 'alert pending'} {clock(at)}"
            axis.text(at + shift, top * height, words, color=colour, fontsize=10, fontweight="bold", va="top", ha=side)
    start = run.schedule.ramp[0]
    axis.text(start - run.ended_at * 0.006, top * 0.06, "OOD images begin", color=QUIET, fontsize=9, ha="right")


def _draw_accuracy(axis: Axes, windows: Sequence[tuple[Reading, Tally]]) -> None:
    _title(axis, "Accuracy (any answer to an OOD image is wrong)")
    shown = [(reading.at, seen) for reading, seen in windows if seen.accepted >= LEAST_FOR_A_POINT]
    axis.set_ylim(0, 1.04)
    if not shown:
        axis.text(0.5, 0.5, "too few images for a curve", transform=axis.transAxes, ha="center", color=QUIET)
        return
    at = np.array([moment for moment, _ in shown])
    gated = np.array([seen.accuracy_of_accepted for _, seen in shown], float)
    plain = np.array([seen.accuracy_without_gate for _, seen in shown], float)
    axis.fill_between(at, plain, gated, where=gated >= plain, color=GREEN, alpha=0.1, linewidth=0)
    for values, colour, words in (
        (gated, GREEN, "what the gate accepted"),
        (plain, ORANGE, "everything, with no gate"),
    ):
        axis.plot(at, values, color=colour, linewidth=2)
        beneath = values[at >= at[-1] * (1 - LABEL_WIDTH)].min()  # the lowest point of the curve above the words
        axis.text(
            at[-1], max(beneath - 0.04, 0.12), f"{words}: {percent(float(values[-1]), 0)} at the end",
            color=colour, fontsize=10, fontweight="bold", ha="right", va="top",
        )  # fmt: skip


def _draw_mixture(axis: Axes, run: Run, windows: Sequence[tuple[Reading, Tally]]) -> None:
    _title(axis, "What was sent")
    at = np.array([reading.at for reading, seen in windows if seen.images])
    share = np.array([seen.foreign_share for _, seen in windows if seen.images], float)
    axis.stackplot(at, share, 1 - share, colors=[PURPLE, "#cbd5e1"], alpha=0.75, linewidth=0)
    axis.set_ylim(0, 1)
    axis.text(run.ended_at * 0.01, 0.5, _pretty(run.known.name), color=INK, fontsize=10, va="center")
    if len(share) and share[-1] > 0.15:
        axis.text(
            run.ended_at * 0.99, share[-1] / 2, _pretty(run.foreign.name), color="white", fontsize=10,
            fontweight="bold", ha="right", va="center",
        )  # fmt: skip


def _draw_images(figure: SubFigure, run: Run) -> None:
    """The newest accepted and refused images, with the class that the model gave them."""
    rows = figure.subplots(2, THUMBNAILS + 1, width_ratios=[1.25, *[1] * THUMBNAILS])
    for row, accepted in zip(rows, (True, False), strict=True):
        for axis in row:
            axis.set_axis_off()
        row[0].text(0, 0.5, "accepted\nat the end" if accepted else "refused\nat the end", transform=row[0].transAxes,
                    fontsize=11, fontweight="bold", color=GREEN if accepted else RED, va="center")  # fmt: skip
        newest = [answer for answer in reversed(run.answers) if answer.accepted == accepted][:THUMBNAILS]
        for axis, answer in zip(row[1:], newest, strict=False):
            _draw_image(axis, run, answer)


def _draw_image(axis: Axes, run: Run, answer: Answer) -> None:
    source = run.foreign if answer.foreign else run.known
    axis.imshow(source.images[answer.index], interpolation="nearest")
    axis.set_title(answer.label, fontsize=8, color=GREEN if answer.right else RED, pad=3)


def _footnote(run: Run) -> str:
    lines = [
        f"Above each thumbnail: the class that the model gave it, red if wrong. Alert {ALERT}: judged by "
        f"{run.watched_by}, time {run.speed:g} × faster than in production.",
        f"Images: {run.known.where}; {run.foreign.where}." + (f" {run.reuse()}." if run.reuse() else ""),
    ]
    return "\n".join(textwrap.fill(line, FOOTNOTE_WIDTH) for line in lines)


def _title(axis: Axes, words: str) -> None:
    axis.set_title(words, loc="left", fontsize=11, color=INK, fontweight="bold")


def _quiet(axis: Axes, ticks: int) -> None:
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(GRID)
    axis.grid(axis="y", color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(length=0, labelsize=9, labelcolor=QUIET)
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.yaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))


def _pretty(name: str) -> str:
    known = {"cifar10": "CIFAR-10", "fashion_mnist": "Fashion-MNIST", "mnist": "MNIST", "svhn": "SVHN"}
    return known.get(name, f"{name} noise".capitalize() if name in ("uniform", "gaussian") else name)
