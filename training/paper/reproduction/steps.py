"""The steps from recipe to bundle. A step that is done is skipped, so a stopped reproduction can be resumed."""

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from service.cpus import usable_cpus
from service.model.bundle import load_bundle
from service.model.command_line import CommandLine
from training.bundles.from_run import make_bundle
from training.calibration.policies import USUAL
from training.errors import RecipeError
from training.learning.fit import FitOptions, fit
from training.learning.runtime.execution import DeviceChoice, Precision
from training.paper.reproduction.experiments import Training
from training.recipe import parse_recipe


@dataclass(frozen=True)
class Workspace:
    """Where a reproduction keeps its runs, bundles and scores; tables of one workspace share them."""

    out: Path
    data_root: Path
    command: CommandLine  # as it was typed: runs and bundles say that they were made by it
    device: DeviceChoice = "auto"
    precision: Precision = "auto"
    compiled: bool = False

    def run(self, training: Training) -> Path:
        """The folder of its run."""
        return self.out / "runs" / training.name

    def bundle(self, training: Training) -> Path:
        """The folder of its bundle."""
        return self.out / "bundles" / training.name / "1"

    def is_fitted(self, training: Training) -> bool:
        """Whether the training is finished. Fails if its folder holds another training."""
        record = self.run(training) / "run.json"
        if not record.is_file():
            return False
        identity = json.loads(record.read_text())
        if parse_recipe(identity["recipe"]) != training.load() or identity["seed"] != training.seed:
            raise RecipeError(
                f"{record.parent} holds another training than {training.name} with these settings. Choose another "
                f"--out, or delete that folder."
            )
        return (record.parent / "result.json").is_file()

    def is_exported(self, training: Training) -> bool:
        """Whether the bundle exists. Fails if it is older than the training."""
        bundle = self.bundle(training)
        if not (bundle / "bundle.json").is_file():
            return False
        result = self.run(training) / "result.json"
        if result.is_file() and result.stat().st_mtime > (bundle / "bundle.json").stat().st_mtime:
            raise RecipeError(f"{bundle} is older than the training {result.parent}. Delete it to export again.")
        load_bundle(bundle)  # raises if it is incomplete
        return True

    def do_fit(self, training: Training, console: Console) -> None:
        """Trains to the end; resumes a training that was stopped."""
        options = FitOptions(
            recipe=training.recipe,
            out=self.run(training),
            seed=training.seed,
            changes=training.changes,
            data_root=self.data_root,
            folder=None,
            size=None,
            init=None,
            weights=None,
            device=self.device,
            precision=self.precision,
            compiled=self.compiled,
            workers=usable_cpus(),
            checkpoint_seconds=60.0,
            command=self.command,
        )
        fit(options, console)

    def do_export(self, training: Training) -> None:
        """Writes the bundle, with thresholds from the calibration split; the tables are measured later."""
        make_bundle(self.run(training), self.bundle(training), self.data_root, [], USUAL, self.command)


def finish_trainings(workspace: Workspace, trainings: tuple[Training, ...], console: Console) -> None:
    """Trains and exports what is missing, one after the other."""
    for number, training in enumerate(trainings, 1):
        where = f"[{number}/{len(trainings)}] {training.name}"
        if not workspace.is_fitted(training):
            console.print(f"{where}: fit", markup=False, highlight=False)
            workspace.do_fit(training, console)
        if not workspace.is_exported(training):
            console.print(f"{where}: export", markup=False, highlight=False)
            workspace.do_export(training)
        else:
            console.print(f"{where}: already there", markup=False, highlight=False)
