"""A listener for tests: hands every step's report to a function."""

from collections.abc import Callable

from training.learning.runtime.listener import Listener, StepReport


class StepsSeen(Listener):
    def __init__(self, heard: Callable[[StepReport], object]) -> None:
        self.heard = heard

    def step_done(self, report: StepReport, learning_rate: float) -> None:  # noqa: ARG002  (a listener's signature)
        self.heard(report)
