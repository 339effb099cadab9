"""Ctrl-C during training, also where Python would drop it."""

import os
import signal
import threading
import weakref

import pytest

from training.learning.runtime.interrupt import remembered_interrupt


class Thing:
    """Something that can be referred to weakly."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_is_raised_at_the_next_check():
    """A SIGINT inside a callback of a weak reference is dropped by Python, and is raised by the check after it."""
    thing = Thing()
    _kept = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
    with remembered_interrupt() as check:
        check()
        del thing
        with pytest.raises(KeyboardInterrupt):
            check()


def test_an_interrupt_is_raised_at_once_and_the_handler_of_before_comes_back():
    """Ctrl-C need not wait for a check, and after the training the signal means what it meant before."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), remembered_interrupt():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_training_outside_the_main_thread_is_let_alone():
    """Only the main thread may handle signals: in another one, nothing is changed and nothing is raised."""
    before, found = signal.getsignal(signal.SIGINT), []

    def train():
        with remembered_interrupt() as check:
            found.append(signal.getsignal(signal.SIGINT))
            check()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert found == [before]
