"""How far an evaluation is: reported by the code that runs graphs, shown as a bar on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

Progress = Callable[[str, int, int], None]  # what is computed, images done, images in total


def silent(_what: str, _done: int, _total: int) -> None:
    """No progress is shown."""


@contextmanager
def progress_bar(on: Console) -> Iterator[Progress]:
    """One bar for the set of images being scored."""
    with Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=on, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
