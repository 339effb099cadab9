"""What a person sees while a network trains: a live bar on a terminal, and one line an epoch."""

from collections.abc import Iterable
from contextlib import ExitStack
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, track

from training.data.folder import FileFacts
from training.learning.runtime.listener import EpochReport, Listener, RunResult, RunStart, StepReport

WARNINGS_SHOWN = 5


def watch_files(console: Console, files: Iterable[FileFacts], count: int) -> Iterable[FileFacts]:
    """A bar for the first pass over a folder."""
    return track(files, f"checking {count} images", total=count, console=console, transient=True)


class ProgressDisplay(Listener):
    """Shows loss, L_c against β, λ, accuracy, speed and time left; at the end the result and the next command."""

    def __init__(self, console: Console, next_command: str) -> None:
        self._console, self._next_command = console, next_command
        self._live = ExitStack()  # holds the bar while it is on the screen

    def started(self, start: RunStart) -> None:
        self._start = start
        if start.pretrained is not None and start.step == 0:
            self._console.print(start.pretrained, highlight=False, markup=False)
        sizes = ", ".join(f"{size:,} {name}" for name, size in start.sizes.items())
        self._say(
            f"{start.recipe} on {start.dataset}: {sizes}; {start.epochs} epochs of {start.steps_per_epoch} steps, "
            f"batches of {start.batch_size}; {start.execution}"
        )
        for note in start.notes:
            self._say(f"note: {note}")
        if start.step:
            self._console.print(f"goes on from step {start.step} of {start.total_steps}")
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=None),
            TextColumn("step {task.completed}/{task.total}"),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            transient=True,
        )
        self._live.enter_context(self._bar)
        self._task = self._bar.add_task(
            "fit",
            total=start.total_steps,
            completed=start.step,
            epoch=start.step // start.steps_per_epoch + 1,
            epochs=start.epochs,
            figures="",
        )

    def step_done(self, report: StepReport, learning_rate: float) -> None:  # noqa: ARG002  (a listener's signature)
        confidence = (
            f"L_c {report.confidence_loss:.2f} (β {self._start.budget:g}) λ {report.confidence_weight:.3f} "
            if self._start.budget is not None
            else ""
        )
        figures = (
            f"loss {report.loss:.3f} {confidence}acc {report.accuracy:.1%} {report.images_per_second:.0f} img/s "
            f"{_duration(report.seconds_left)} left"
        )
        self._bar.update(self._task, completed=report.step, epoch=report.epoch + 1, figures=figures)

    def epoch_done(self, report: EpochReport, step: int, seconds: float) -> None:  # noqa: ARG002  (a listener's signature)
        confidence = (
            f", L_c {report.confidence_loss:.3f} (β {self._start.budget:g}), λ {report.confidence_weight:.3f}, "
            f"std of c {report.confidence_spread:.3f}"
            if self._start.budget is not None
            else ""
        )
        self._console.print(
            f"epoch {report.epoch + 1}/{self._start.epochs}: train {report.train_accuracy:.2%}, "
            f"validation {report.validation_accuracy:.2%}{confidence}, {_duration(seconds)}",
            highlight=False,
            soft_wrap=True,
        )
        self._warn(report.warnings)

    def blended(self, share: float, validation_accuracy: float, validation_loss: float) -> None:
        self._say(
            f"of blends of the first and the last weights, {share:.0%} of the last has the smallest validation loss: "
            f"{validation_loss:.3f}, accuracy {validation_accuracy:.2%}"
        )

    def finished(self, result: RunResult) -> None:
        self._live.close()
        self._console.print(
            f"[bold]done[/bold] after {result.steps} steps in {_duration(result.seconds)}: "
            f"validation accuracy {result.validation_accuracy:.2%} (n={self._start.sizes['validation']})",
            highlight=False,
        )
        if self._start.budget is not None:
            self._console.print(
                f"L_c {result.confidence_loss:.3f} (β {self._start.budget:g}), λ {result.confidence_weight:.3f}",
                highlight=False,
            )
        shown, hidden = result.warnings[-WARNINGS_SHOWN:], len(result.warnings[:-WARNINGS_SHOWN])
        self._warn(shown)
        if hidden:
            self._console.print(
                f"[yellow]and {hidden} warnings of earlier epochs[/yellow]: see result.json", highlight=False
            )
        self._say(f"next: {self._next_command}")

    def close(self) -> None:
        """Takes the bar off the screen; also after a training that failed."""
        self._live.close()

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _warn(self, warnings: list[str]) -> None:
        for warning in warnings:
            self._console.print(f"[yellow]warning:[/yellow] {warning}", highlight=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
