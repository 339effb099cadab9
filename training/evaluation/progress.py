"""How far an evaluation is: reported by the code that runs graphs; a bar on a terminal, plain lines without one."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from training.graphs.progress import PlainLines, how_far

Progress = Callable[[str, int, int], None]  # what is computed, images done, images in total


def silent(_what: str, _done: int, _total: int) -> None:
    """No progress is shown."""


@contextmanager
def progress_bar(on: Console) -> Iterator[Progress]:
    """One bar, or line, for the set of images being scored."""
    if not on.is_terminal:
        yield _plain_lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=on, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            if done == 0:
                bar.reset(task, total=total)  # the time left is that of this set
            bar.update(task, description=what, completed=done, total=total)

        yield show


def _plain_lines() -> Progress:
    lines, started = PlainLines(), time.monotonic()

    def show(what: str, done: int, total: int) -> None:
        nonlocal started
        if done == 0:
            started = time.monotonic()
        else:
            lines.say(lambda: f"{what}: {how_far(done, total, time.monotonic() - started)}")

    return show
