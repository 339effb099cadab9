"""`confgate-train reproduce`: trainings, bundles, measurements and the table beside the published one."""

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from training.evaluation.evaluate import Settings, evaluate
from training.evaluation.measure import EpsilonChoice
from training.evaluation.ood_sets import ALL
from training.evaluation.progress import progress_bar
from training.evaluation.tables import notes_of
from training.evaluation.write import csv_text, write_evaluation, write_text
from training.paper.published import citation
from training.paper.reproduction.beside import (
    Finished,
    beside_tables,
    compare,
    notes_for,
    records_of,
)
from training.paper.reproduction.budget import budget_figure, budget_records, budget_table
from training.paper.reproduction.experiments import BUDGET_SWEEP, EXPERIMENTS, Cell, Experiment, check_data, sets_here
from training.paper.reproduction.steps import Workspace, finish_trainings
from training.report.style import DPI


@dataclass(frozen=True)
class Reproduction:
    """An experiment, and how to measure it."""

    experiment: Experiment
    workspace: Workspace
    seeds: int
    epsilon: EpsilonChoice = "per-set"
    limit: int | None = None

    @property
    def folder(self) -> Path:
        return self.workspace.out / f"table-{self.experiment.table}"


def show_plan(reproduction: Reproduction, console: Console) -> None:
    """Shows what would be done, and what is done already; computes nothing."""
    experiment, workspace = reproduction.experiment, reproduction.workspace
    console.print(f"table {experiment.table}: {EXPERIMENTS[experiment.table]}", highlight=False, soft_wrap=True)
    table = Table("training", "network", "data", "epochs", "fit", "export")
    for training in experiment.trainings:
        recipe = training.load()
        states = [
            "[green]done[/green]" if done else "to do"
            for done in (workspace.is_fitted(training), workspace.is_exported(training))
        ]
        table.add_row(training.name, recipe.network.name, recipe.data.dataset, str(recipe.optimiser.epochs), *states)
    console.print(table)
    used = sets_here(experiment, workspace.data_root)
    named = ", ".join(here if here == name else f"{here} (for {name})" for name, here in used.items())
    console.print(f"evaluate on {named}; table in {reproduction.folder}", highlight=False, soft_wrap=True)


def reproduce(reproduction: Reproduction, console: Console) -> list[Path]:
    """Does what is not done yet and writes the table; after an interruption, the same call continues."""
    experiment, workspace = reproduction.experiment, reproduction.workspace
    check_data(experiment, workspace.data_root)
    finish_trainings(workspace, experiment.trainings, console)
    finished = _measure(reproduction, console)
    return _write(reproduction, finished, console)


def _measure(reproduction: Reproduction, console: Console) -> list[Finished]:
    """Cell by cell: two cells may be the same network on the same data, and differ in β alone."""
    finished = []
    with progress_bar(console) as show:
        for cell in reproduction.experiment.cells:
            evaluation = evaluate(
                [reproduction.workspace.bundle(training) for training in cell.branch],
                [reproduction.workspace.bundle(training) for training in cell.baseline],
                _settings(reproduction, cell),
                show,
            )
            finished.append(Finished(cell, evaluation.groups[0], evaluation))
    return finished


def _settings(reproduction: Reproduction, cell: Cell) -> Settings:
    workspace = reproduction.workspace
    used = sets_here(reproduction.experiment, workspace.data_root)
    return Settings(
        ood=tuple(used.values()),
        data_root=workspace.data_root,
        out=workspace.out,
        epsilon=reproduction.epsilon,
        limit=reproduction.limit,
        device=workspace.device,
        preprocessed=reproduction.experiment.table == "2",  # the only one that shows them: they take most of the time
        runs={workspace.bundle(training): workspace.run(training) for training in (*cell.branch, *cell.baseline)},
    )


def _write(reproduction: Reproduction, finished: list[Finished], console: Console) -> list[Path]:
    experiment, folder = reproduction.experiment, reproduction.folder
    used = sets_here(experiment, reproduction.workspace.data_root)
    if experiment.table == BUDGET_SWEEP:
        groups = {done.cell.budget: done.group for done in finished if done.cell.budget is not None}
        records = budget_records(groups, used[ALL])
        tables = [budget_table(records)]
    else:
        compared = compare(experiment, finished, used)
        tables, records = beside_tables(experiment, compared), records_of(compared)
    notes = notes_for(experiment, used, reproduction.seeds)
    notes += dict.fromkeys(note for done in finished for note in notes_of(done.evaluation))
    command = _command(reproduction)
    for table in tables:
        console.print(table.rich())
    for note in notes:
        console.print(f"- {note}", highlight=False, markup=False, soft_wrap=True)
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(
        [
            f"# Table {experiment.table}: {EXPERIMENTS[experiment.table]}",
            f"\n`{command}`\n\nPublished values: {citation()}.\n",
            *(f"- {note}" for note in notes),
            "",
            *(table.markdown() for table in tables),
        ]
    )
    write_text(folder / "table.md", text)
    write_text(folder / "table.csv", csv_text(records))
    write_text(folder / "table.json", json.dumps({"command": command, "values": records}, indent=1) + "\n")
    written = [folder / name for name in ("table.md", "table.csv", "table.json")]
    if experiment.table == BUDGET_SWEEP:
        budget_figure(records).savefig(folder / "budget.png", dpi=DPI)
        written.append(folder / "budget.png")
    for done in finished:
        written += write_evaluation(done.evaluation, folder / _name(done), command)
    return written


def _name(done: Finished) -> str:
    budget = "" if done.cell.budget is None else f"-budget{done.cell.budget:g}"
    return f"{done.group.network}-{done.group.inside}{budget}"


def _command(reproduction: Reproduction) -> str:
    experiment = reproduction.experiment
    words = [f"confgate-train reproduce {experiment.table} --seeds {reproduction.seeds} --scale {experiment.scale}"]
    changes = dict.fromkeys(change for t in experiment.trainings if not t.label for change in t.changes)
    words += [f"--set {change}" for change in changes]
    if experiment.table == "2":
        words.append(f"--epsilon {reproduction.epsilon}")
    if reproduction.limit is not None:
        words.append(f"--limit {reproduction.limit}")
    return " ".join(words)
