"""Live output of a run: a chart on a terminal, plain lines elsewhere."""

import math
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from demo.answers import tally
from demo.processes import Watched
from demo.run import Run, clock, percent
from demo.watching import ENDED, FIRING, PENDING, Reading, Share

LOW_TERMINAL, HIGH_TERMINAL = 38, 52  # lines
AXIS = 7  # characters left of the chart
WIDEST = 110
BAR = 28
EIGHTHS = " ▁▂▃▄▅▆▇█"
STATE_STYLES = {PENDING: "yellow", FIRING: "bold red", ENDED: "green"}
BAND = "on grey23"
PLAIN_LINES = 40  # per run


class Screen(Protocol):
    """Shows the state of a run whenever it is updated."""

    def __enter__(self) -> "Screen": ...
    def __exit__(self, *problem: object) -> None: ...
    def update(self, run: Run, at: float) -> None: ...


def screen_for(console: Console) -> Screen:
    return LiveScreen(console) if console.is_terminal else PlainLines(console)


class LiveScreen:
    """Redraws one block of the terminal."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> "LiveScreen":
        self._live.start()
        return self

    def __exit__(self, *_problem: object) -> None:
        self._live.stop()

    def update(self, run: Run, at: float) -> None:
        width, height = self._live.console.size
        self._live.update(drawing(run, at, min(width, WIDEST), height), refresh=True)


class PlainLines:
    """For logs: a line at regular times, and one for every change of an alert."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next, self._events = 0.0, 0

    def __enter__(self) -> "PlainLines":
        return self

    def __exit__(self, *_problem: object) -> None:
        pass

    def update(self, run: Run, at: float) -> None:
        for event in run.events[self._events :]:
            self._say(f"{clock(event.at):>5}  alert {event.alert}: {event.state}")
        self._events = len(run.events)
        if at >= self._next and run.readings:
            self._next = at + max(1.0, run.schedule.seconds / PLAIN_LINES)
            self._say(_line(run, at, run.readings[-1]))

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _line(run: Run, at: float, reading: Reading) -> str:
    recent = run.window(at)
    refused = "   ".join(_refused(one, reading.shares.get(one.reason)) for one in run.gate.watched)
    return (
        f"{clock(at):>5}  OOD {percent(recent.foreign_share, 0):>5}   {refused}   "
        f"accuracy: accepted {percent(recent.accuracy_of_accepted)}, no gate {percent(recent.accuracy_without_gate)}"
    )


def _refused(watched: Watched, share: Share | None) -> str:
    band = "" if share is None else f" ± {share.tolerance * 100:.1f}"
    return (
        f"{watched.reason} {percent(share.rate if share else None):>6}, expected {watched.expected * 100:.1f}{band} %"
        f"{' OUTSIDE' if share and share.outside else ''}"
    )


def drawing(run: Run, at: float, width: int, height: int) -> RenderableType:
    """The whole block; a low terminal gets a shorter one."""
    low = height < LOW_TERMINAL
    reading = run.readings[-1] if run.readings else None
    several = len(run.gate.watched) > 1
    step = (0.2 if low else 0.1 if height < HIGH_TERMINAL else 0.05) if several else (0.1 if low else 0.05)
    parts: list[RenderableType] = [_headline(run, at), _charts(run, width - 4, step)]
    parts += [_accuracy(run, at, whole=not low), _alerts(run, reading, others=1 if low else 3)]
    if not low:
        parts = [line for part in parts for line in (part, Text())][:-1]
    title = f"confgate demo · {run.gate.model} {run.gate.version} · {clock(at)} of {clock(run.schedule.seconds)}"
    return Panel(Group(*parts), title=title, width=width, border_style="grey50")


def _headline(run: Run, at: float) -> Text:
    start, end = run.schedule.ramp
    share = run.schedule.foreign_share(at)
    what = f"{share * 100:.0f} % {run.foreign.name}, {100 - share * 100:.0f} % {run.known.name}"
    phase = "in-distribution only" if at < start else "more and more OOD images" if at < end else "many OOD images"
    recent = run.window(at)
    speed = recent.images / min(run.timing.window, max(at, 0.1))
    return Text.assemble(("now sending ", "bold"), f"{phase}: {what} ({speed:.0f} images/s)")


def _charts(run: Run, width: int, step: float) -> Text:
    """For each reason the refused share over time with its band and its alert; below them the share of OOD images."""
    columns, total = width - AXIS, run.ended_at
    text = Text.assemble(
        f"shares of {run.timing.window:g} s  ", ("●", "green"), " inside  ", ("●", "bold red"), " outside  ",
        ("      ", BAND), " the rule's band  ", ("┄", "cyan"), " expected\n",
    )  # fmt: skip
    for watched in run.gate.watched:
        text.append_text(_chart(run, watched, columns, step))
    text.append("OOD".ljust(AXIS))
    for column in range(columns):
        moment = (column + 0.5) * total / columns
        known = run.readings and moment <= run.readings[-1].at
        share = run.schedule.foreign_share(moment)
        text.append(EIGHTHS[math.ceil(share * 8)], "magenta" if known else "grey37")
    return text


def _chart(run: Run, watched: Watched, columns: int, step: float) -> Text:
    """The share that is refused for one reason, and below it the state of its alert."""
    binned: list[Share | None] = [None] * columns
    for reading in run.readings:
        if watched.reason in reading.shares and reading.at >= 0:
            binned[min(columns - 1, int(reading.at / run.ended_at * columns))] = reading.shares[watched.reason]
    text = Text(f"{watched.reason}\n", "bold")
    for row in range(math.ceil(_top(run, watched) / step - 1e-9), -1, -1):
        level = row * step
        label = round(level * 100)
        text.append((f"{label:4d} % " if label % 10 == 0 else "").ljust(AXIS), "grey62")
        for shown in binned:
            text.append(*_cell(shown, level, step, watched.expected))
        text.append("\n")
    text.append("alert".ljust(AXIS))
    return text.append_text(_alert_lane(run, watched.alert, columns)).append("\n")


def _top(run: Run, watched: Watched) -> float:
    """The top of the scale: above all that was seen; as unfamiliar, above the share if every OOD image were refused."""
    seen = [reading.shares[watched.reason].rate for reading in run.readings if watched.reason in reading.shares]
    foreign = 0.0 if watched.reason == "unsure" and len(run.gate.watched) > 1 else run.schedule.largest_share
    highest = max([watched.expected + foreign * (1 - watched.expected), watched.expected + 0.1, *seen])
    return min(1.0, math.ceil(highest * 10 + 0.5) / 10)


def _cell(share: Share | None, level: float, step: float, expected: float) -> tuple[str, str]:
    """One character, which stands for values of `level` ± half a `step`."""

    def here(value: float) -> bool:
        return level - step / 2 <= value < level + step / 2

    if share is None:
        return ("┄", "grey37") if here(expected) else (" ", "")
    band = BAND if abs(level - share.expected) <= share.tolerance else ""
    if here(share.rate):
        return "●", f"{'bold red' if share.outside else 'green'} {band}"
    return ("┄", f"cyan {band}") if here(expected) else (" ", band)


def _alert_lane(run: Run, alert: str, columns: int) -> Text:
    total = run.ended_at
    lane: list[tuple[str, str]] = [(" ", "")] * columns
    marks = {PENDING: ("░", "yellow"), FIRING: ("█", "red"), ENDED: (" ", "")}
    for event in run.events:
        if event.alert == alert:
            first = min(columns - 1, max(0, int(event.at / total * columns)))
            lane[first:] = [marks[event.state]] * (columns - first)
    if run.readings:  # later columns are unknown
        now = int(run.readings[-1].at / total * columns) + 1
        lane[now:] = [(" ", "")] * max(0, columns - now)
    return Text.assemble(*lane)


def _accuracy(run: Run, at: float, whole: bool) -> Table:
    table = Table.grid(padding=(0, 1))
    shown = [(f"last {run.timing.window:g} s", run.window(at))]
    shown += [("whole run", tally(run.answers))] if whole else []
    for title, answers in shown:
        table.add_row(Text(f"accuracy, {title}", "bold"))
        for name, share, n, colour in (
            ("what the gate accepted", answers.accuracy_of_accepted, answers.accepted, "green"),
            ("everything, with no gate", answers.accuracy_without_gate, answers.images, "dark_orange"),
        ):
            filled = round((share or 0) * BAR)
            bar = Text.assemble(("█" * filled, colour), ("░" * (BAR - filled), "grey37"))
            table.add_row(f"  {name}", bar, Text(f"{percent(share):>7}", f"bold {colour}"), f"n = {n:,}")
    return table


def _alerts(run: Run, reading: Reading | None, others: int) -> Text:
    text = Text()
    for alert in run.gate.alerts:
        state, since = (reading.alerts if reading else {}).get(alert, ("not active", 0.0))
        said = state if state == "not active" else f"{state} since {clock(since)}"
        text.append(f"{alert} ", "bold")
        text.append(f"{said}\n", STATE_STYLES.get(state, "green"))
    text.append(f"(judged by {run.watched_by})", "grey62")
    for event in [event for event in run.events if event.alert not in run.gate.alerts][-others:]:
        text.append(f"\n{clock(event.at):>5}  {event.alert} ")
        text.append(event.state, STATE_STYLES[event.state])
    return text
