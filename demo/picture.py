"""The picture of a run: what was refused and why, the alerts, the accuracy of the rest, and a few of the images."""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from PIL import Image

from demo.answers import Answer, Tally, newest
from demo.operator_view import timeline, verdict
from demo.processes import Watched
from demo.run import Run, clock, percent
from demo.watching import ENDED, FIRING, PENDING, Reading

INK, QUIET, GRID = "#22262b", "#6b7280", "#e5e7eb"
GREEN, ORANGE, PURPLE, BLUE = "#15803d", "#d97706", "#7c3aed", "#1d4ed8"
AMBER, RED = "#f59e0b", "#dc2626"
LEAST_FOR_A_POINT = 30  # accepted images that a window needs to be drawn
LABEL_WIDTH = 0.4  # share of the time axis that the words beneath a curve take
THUMBNAILS = 12
OPERATOR_LINES = 8  # of the timeline
FOOTNOTE_WIDTH = 165  # characters in a line as wide as the picture


def draw(run: Run, path: Path) -> None:
    """Writes the picture as PNG."""
    watched, told = run.gate.watched, _told(run)
    heights = [0.75, 5.0 + 2.0 * len(watched), 0.45 + 0.19 * len(told), 1.18 * (1 + len(watched)), 0.55]
    figure = Figure(figsize=(10, sum(heights)), layout="constrained", facecolor="white")
    parts = figure.subfigures(5, 1, height_ratios=heights)
    assert isinstance(parts, np.ndarray)
    head, charts, operator, images, foot = parts
    head.text(0.015, 0.62, _headline(run), fontsize=15, fontweight="bold", color=INK, va="center")
    head.text(0.015, 0.1, _subtitle(run), fontsize=10, color=QUIET, va="center")
    ratios = [3 if i == 0 else 2.4 for i in range(len(watched))] + [3, 1.2]
    axes = charts.subplots(len(ratios), 1, sharex=True, height_ratios=ratios)
    accuracy, mixture = axes[-2:]
    windows = [(reading, run.window(reading.at)) for reading in run.readings if reading.at > 0]
    for axis, one in zip(axes, watched, strict=False):
        _draw_refused(axis, run, one)
    _draw_accuracy(accuracy, windows)
    _draw_mixture(mixture, run, windows)
    for axis in axes:
        _quiet(axis, 2 if axis is mixture else 5)
        axis.set_xlim(0, run.ended_at)
        axis.axvline(run.schedule.ramp[0], color=QUIET, linewidth=0.8, linestyle=(0, (2, 3)))
    mixture.xaxis.set_major_locator(MaxNLocator(9, steps=[1, 1.5, 3, 6, 10]))
    mixture.xaxis.set_major_formatter(FuncFormatter(lambda value, _: clock(value)))
    mixture.set_xlabel("minutes : seconds of the run", fontsize=9, color=QUIET)
    operator.text(0.015, 1 - 0.18 / heights[2], "What an operator would have seen", fontsize=11, color=INK,
                  fontweight="bold", va="center")  # fmt: skip
    operator.text(0.015, 1 - 0.36 / heights[2], "\n".join(told), fontsize=9, color=INK, va="top", linespacing=1.45)
    _draw_images(images, run)
    foot.text(0.015, 0.5, _footnote(run), fontsize=8, color=QUIET, va="center", linespacing=1.5)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100)
    with Image.open(drawn) as picture:
        # A third of the bytes, with no visible difference.
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, "PNG", optimize=True)


def _headline(run: Run) -> str:
    foreign = _pretty(run.foreign.name)
    if not run.fired:
        return f"{foreign} mixed into CIFAR-10 traffic, and no alert"
    return f"{foreign} creeps into CIFAR-10 traffic: the gate refuses it, the alert fires"


def _subtitle(run: Run) -> str:
    gate, images = run.gate, len(run.answers)
    return (
        f"{gate.model} version {gate.version}, policy {gate.policy} on {gate.compared}; "
        f"{images:,} images, one per request; every curve covers the last {run.timing.window:g} s"
    )


def _told(run: Run) -> list[str]:
    """The timeline, without its middle where it is long, and what it tells."""
    lines = timeline(run)
    if (more := len(lines) - OPERATOR_LINES) > 0:
        half = OPERATOR_LINES // 2
        lines = [*lines[:half], f"    …  {more} more", *lines[-half:]]
    return [*lines, verdict(run)]


def _draw_refused(axis: Axes, run: Run, watched: Watched) -> None:
    shown = [
        (reading.at, reading.shares[watched.reason]) for reading in run.readings if watched.reason in reading.shares
    ]
    at = np.array([moment for moment, _ in shown])
    rate = np.array([share.rate for _, share in shown])
    expected = np.array([share.expected for _, share in shown])
    band = np.array([share.tolerance for _, share in shown])
    question = {"unfamiliar": "unlike what the model was made for", "unsure": "familiar, but of a class it cannot tell"}
    means = f" ({question[watched.reason]})" if len(run.gate.watched) > 1 else ""
    _title(axis, f"Refused as {watched.reason}{means}, and what {watched.alert} tolerates")
    axis.fill_between(at, np.maximum(expected - band, 0), expected + band, color=GREEN, alpha=0.13, linewidth=0)
    axis.axhline(watched.expected, color=GREEN, linewidth=1, linestyle=(0, (5, 3)))
    axis.plot(at, rate, color=BLUE, linewidth=2)
    axis.set_ylim(0, min(1, max([0.1, *(expected + band)[at > run.timing.window], *rate]) * 1.2))
    above = expected[-1] + band[-1] if len(band) else watched.expected
    axis.text(
        run.ended_at * 0.995, above, f"expected by calibration: {percent(watched.expected)}", color=GREEN,
        fontsize=9, ha="right", va="bottom",
    )  # fmt: skip
    _draw_alert(axis, run, watched.alert)
    if watched == run.gate.watched[0]:
        start, top = run.schedule.ramp[0], axis.get_ylim()[1]
        axis.text(start - run.ended_at * 0.006, top * 0.72, "OOD images begin", color=QUIET, fontsize=9, ha="right")


def _draw_alert(axis: Axes, run: Run, alert: str) -> None:
    """Shades the states of an alert, with a label at the start of each."""
    events = [event for event in run.events if event.alert == alert]
    for i, event in enumerate(events):
        end = events[i + 1].at if i + 1 < len(events) else run.ended_at
        if event.state == ENDED:
            continue
        colour = {PENDING: AMBER, FIRING: RED}[event.state]
        axis.axvspan(event.at, end, color=colour, alpha=0.13, linewidth=0)
    top = axis.get_ylim()[1]
    for state, colour, at in ((PENDING, AMBER, run.pending_at(alert)), (FIRING, RED, run.firing_at(alert))):
        if at is not None:
            late = at > 0.8 * run.ended_at  # no room on the right
            side, height = ("right", 0.85) if state == FIRING and late else ("left", 0.95)
            side = "right" if state == PENDING else side
            axis.axvline(at, color=colour, linewidth=1.4)
            shift = run.ended_at * (-0.006 if side == "right" else 0.006)
            words = f"{'alert fires' if state == FIRING else 'alert pending'} {clock(at)}"
            axis.text(at + shift, top * height, words, color=colour, fontsize=10, fontweight="bold", va="top", ha=side)


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
    """The newest accepted images and the newest refused ones for each reason, each once, with its class."""
    kinds: list[str | None] = [None, *(one.reason for one in run.gate.watched)]
    rows = figure.subplots(len(kinds), THUMBNAILS + 1, width_ratios=[1.25, *[1] * THUMBNAILS])
    for row, reason in zip(rows, kinds, strict=True):
        for axis in row:
            axis.set_axis_off()
        row[0].text(0, 0.5, f"{reason or 'accepted'}\n(newest)", transform=row[0].transAxes,
                    fontsize=11, fontweight="bold", color=RED if reason else GREEN, va="center")  # fmt: skip
        for axis, answer in zip(row[1:], newest(run.answers, reason, THUMBNAILS), strict=False):
            _draw_image(axis, run, answer)


def _draw_image(axis: Axes, run: Run, answer: Answer) -> None:
    source = run.foreign if answer.foreign else run.known
    axis.imshow(source.images[answer.index], interpolation="nearest")
    axis.set_title(answer.label, fontsize=8, color=GREEN if answer.right else RED, pad=3)


def _footnote(run: Run) -> str:
    lines = [
        f"Above each thumbnail: the class that the model gave it, red if wrong. Alerts: judged by {run.watched_by}, "
        f"time {run.speed:g} × faster than in production.",
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
    axis.yaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10]))


def _pretty(name: str) -> str:
    known = {"cifar10": "CIFAR-10", "fashion_mnist": "Fashion-MNIST", "mnist": "MNIST", "svhn": "SVHN"}
    return known.get(name, f"{name} noise".capitalize() if name in ("uniform", "gaussian") else name)
