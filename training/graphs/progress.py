"""Shows how many images the graphs have processed: with input preprocessing that takes minutes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console

_tell: ContextVar[Callable[[int], None] | None] = ContextVar("tell", default=None)


def images_done(images: int) -> None:
    """Called by the code that runs a graph, after each batch."""
    tell = _tell.get()
    if tell is not None:
        tell(images)


@contextmanager
def counting_images(console: Console, what: str) -> Iterator[None]:
    """Shows the count on a terminal while the block runs; a file or a pipe gets nothing."""
    seen = 0
    with console.status(f"{what} …") as status:

        def tell(images: int) -> None:
            nonlocal seen
            seen += images
            status.update(f"{what}: {seen:,} images so far")

        token = _tell.set(tell)
        try:
            yield
        finally:
            _tell.reset(token)
