"""What a person sees while a network trains: a live bar on a terminal, one line an epoch in a log file."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from training.fit import EpochReport, Run, StepReport


def show_training(run: Run, console: Console) -> None:
    """Trains the run to its end, showing loss, L_c against β, λ, accuracy, speed and time left."""
    budget = run.recipe.confidence.budget
    learns = run.recipe.confidence.enabled
    progress = Progress(
        TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=console,
    )

    with progress:
        task = progress.add_task("fit", total=run.total_steps, epoch=0, epochs=run.recipe.optimiser.epochs, figures="")

        def on_step(report: StepReport) -> None:
            confidence = (
                f"L_c {report.confidence_loss:.2f} (β {budget:g}) λ {report.confidence_weight:.3f} " if learns else ""
            )
            progress.update(
                task,
                completed=report.step,
                epoch=report.epoch + 1,
                figures=f"loss {report.loss:.3f} {confidence}acc {report.accuracy:.1%} "
                f"{report.images_per_second:.0f} img/s",
            )

        def on_epoch(report: EpochReport) -> None:
            confidence = (
                f", L_c {report.confidence_loss:.3f} (β {budget:g}), λ {report.confidence_weight:.3f}, "
                f"std of c {report.confidence_spread:.3f}"
                if learns
                else ""
            )
            console.print(
                f"epoch {report.epoch + 1}: train {report.train_accuracy:.2%}, "
                f"validation {report.validation_accuracy:.2%}{confidence}",
                highlight=False,
            )
            for warning in report.warnings:
                console.print(f"[yellow]warning:[/yellow] {warning}", highlight=False)

        run.train(on_step, on_epoch)
