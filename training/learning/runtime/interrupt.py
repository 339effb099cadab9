"""Ctrl-C that cannot be lost.

Python drops a KeyboardInterrupt that is raised inside a finaliser or a callback of a weak reference, and the training
would go on for hours. So the signal is also remembered, and the training loop asks after every step.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def remembered_interrupt() -> Iterator[Callable[[], None]]:
    """Yields what raises KeyboardInterrupt if Ctrl-C was pressed since; outside the main thread it never does."""
    pressed = threading.Event()

    def remember(number: int, frame: FrameType | None) -> None:
        pressed.set()
        signal.default_int_handler(number, frame)

    def check() -> None:
        if pressed.is_set():
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = signal.signal(signal.SIGINT, remember)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
