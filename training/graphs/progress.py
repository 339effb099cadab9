"""Shows how many images the graphs have processed: with input preprocessing that takes minutes.

On a terminal one live line; without one, plain lines on stderr now and then, so that a log shows that work goes on.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from rich.console import Console

FIRST_SECONDS = 3.0  # what is done sooner needs no line
EVERY_SECONDS = 15.0

_count: ContextVar["ImageCount | None"] = ContextVar("count", default=None)
_every: ContextVar[float] = ContextVar("every", default=EVERY_SECONDS)


def say_every(seconds: float) -> None:
    """How much time passes between two plain lines; 0: a line for each batch."""
    _every.set(seconds)


@dataclass
class PlainLines:
    """Prints a line if it is time for one."""

    started: float = field(default_factory=lambda: time.monotonic())
    said: float | None = None

    def say(self, text: Callable[[], str]) -> None:
        now, every = time.monotonic(), _every.get()
        due = min(FIRST_SECONDS, every) if self.said is None else every
        if now - (self.started if self.said is None else self.said) >= due:
            self.said = now
            print(text(), file=sys.stderr, flush=True)


@dataclass
class ImageCount:
    """The images of one pass of a graph, and of all passes of a command."""

    what: str
    show: Callable[["ImageCount"], None]
    started: float = field(default_factory=lambda: time.monotonic())
    everything: int = 0
    step: str = ""
    total: int = 0
    done: int = 0
    step_started: float = 0.0

    def begin(self, step: str, total: int) -> None:
        self.step, self.total, self.done, self.step_started = step, total, 0, time.monotonic()

    def add(self, images: int) -> None:
        self.done += images
        self.everything += images
        self.show(self)

    def __str__(self) -> str:
        step = f"{self.what}, {self.step}" if self.step else self.what
        return f"{step}: {how_far(self.done, self.total, time.monotonic() - self.step_started)}"

    @property
    def summary(self) -> str:
        seconds = time.monotonic() - self.started
        return f"{self.what}: done, {self.everything:,} images in all passes, {seconds:,.0f} s"


def how_far(done: int, total: int, seconds: float) -> str:
    """`1,200 of 3,000 images, 41 images/s, 44 s left`."""
    speed = done / max(seconds, 1e-6)
    rate = f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"
    left = f", {(total - done) / speed:,.0f} s left" if done else ""
    return f"{done:,} of {total:,} images, {rate} images/s{left}"


def pass_begins(step: str, images: int) -> None:
    """Called by the code that runs a graph, before the first batch."""
    count = _count.get()
    if count is not None:
        count.begin(step, images)


def images_done(images: int) -> None:
    """Called by the code that runs a graph, after each batch."""
    count = _count.get()
    if count is not None:
        count.add(images)


@contextmanager
def counting_images(console: Console, what: str) -> Iterator[None]:
    """Shows how far the passes are that run in the block."""
    if console.is_terminal:
        with (
            console.status(f"{what} …") as status,
            _counting(ImageCount(what, lambda count: status.update(str(count)))),
        ):
            yield
        return
    lines = PlainLines()
    count = ImageCount(what, lambda count: lines.say(lambda: str(count)))
    with _counting(count):
        yield
    if lines.said is not None:
        print(count.summary, file=sys.stderr, flush=True)


@contextmanager
def _counting(count: ImageCount) -> Iterator[None]:
    token = _count.set(count)
    try:
        yield
    finally:
        _count.reset(token)
