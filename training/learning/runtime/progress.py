"""What a person sees while a network trains: a live bar on a terminal, one line an epoch in a log file."""

from collections.abc import Iterable
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, track

from training.data.folder import FileFacts
from training.learning.epoch_summary import EpochReport
from training.learning.loop import Run, RunResult, StepReport

WARNINGS_SHOWN = 5


def watch_files(console: Console, files: Iterable[FileFacts], count: int) -> Iterable[FileFacts]:
    """A bar for the first pass over a folder."""
    return track(files, f"checking {count} images", total=count, console=console, transient=True)


def show_training(run: Run, console: Console, command: str) -> None:
    """Trains the run to its end, showing loss, L_c against β, λ, accuracy, speed and time left."""
    if run.pretrained is not None and run.step == 0:
        console.print(run.pretrained.describe(), highlight=False, markup=False)
    sizes = ", ".join(f"{size:,} {name}" for name, size in run.splits.sizes.items())
    console.print(
        f"{run.recipe.name} on {run.recipe.data.dataset}: {sizes}; {run.execution.description}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    for note in run.splits.notes:
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    if run.step:
        console.print(f"goes on from step {run.step} of {run.total_steps}")
    progress = Progress(
        TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
        BarColumn(bar_width=None),
        TextColumn("step {task.completed}/{task.total}"),
        TextColumn("{task.fields[figures]}"),
        console=console,
        transient=True,
    )
    with progress:
        task = progress.add_task(
            "fit",
            total=run.total_steps,
            completed=run.step,
            epoch=run.step // run.plan.steps_per_epoch + 1,
            epochs=run.recipe.optimiser.epochs,
            figures="",
        )

        def on_step(report: StepReport) -> None:
            progress.update(task, completed=report.step, epoch=report.epoch + 1, figures=_step_figures(run, report))

        def on_epoch(report: EpochReport) -> None:
            console.print(_epoch_line(run, report), highlight=False, soft_wrap=True)
            for warning in report.warnings:
                console.print(f"[yellow]warning:[/yellow] {warning}", highlight=False, soft_wrap=True)

        result = run.train(on_step, on_epoch)
    if result is not None:
        _show_result(run, result, console, command)


def _step_figures(run: Run, report: StepReport) -> str:
    confidence = (
        f"L_c {report.confidence_loss:.2f} (β {run.recipe.confidence.budget:g}) λ {report.confidence_weight:.3f} "
        if run.recipe.confidence.enabled
        else ""
    )
    return (
        f"loss {report.loss:.3f} {confidence}acc {report.accuracy:.1%} {report.images_per_second:.0f} img/s "
        f"{_duration(report.seconds_left)} left"
    )


def _epoch_line(run: Run, report: EpochReport) -> str:
    confidence = (
        f", L_c {report.confidence_loss:.3f} (β {run.recipe.confidence.budget:g}), λ {report.confidence_weight:.3f}, "
        f"std of c {report.confidence_spread:.3f}"
        if run.recipe.confidence.enabled
        else ""
    )
    return (
        f"epoch {report.epoch + 1}/{run.recipe.optimiser.epochs}: train {report.train_accuracy:.2%}, "
        f"validation {report.validation_accuracy:.2%}{confidence}, {_duration(run.seconds)}"
    )


def _show_result(run: Run, result: RunResult, console: Console, command: str) -> None:
    console.print(
        f"[bold]done[/bold] after {result.steps} steps in {_duration(result.seconds)}: "
        f"validation accuracy {result.validation_accuracy:.2%} (n={len(run.splits.validation)})",
        highlight=False,
    )
    if run.recipe.confidence.enabled:
        console.print(
            f"L_c {result.confidence_loss:.3f} (β {run.recipe.confidence.budget:g}), λ {result.confidence_weight:.3f}",
            highlight=False,
        )
    shown, hidden = result.warnings[-WARNINGS_SHOWN:], len(result.warnings[:-WARNINGS_SHOWN])
    for warning in shown:
        console.print(f"[yellow]warning:[/yellow] {warning}", highlight=False, soft_wrap=True)
    if hidden:
        console.print(f"[yellow]and {hidden} warnings of earlier epochs[/yellow]: see result.json", highlight=False)
    console.print(f"next: {command}", highlight=False, markup=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
