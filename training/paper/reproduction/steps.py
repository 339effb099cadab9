"""The steps from recipe to bundle, each recognised when it is already done: a stopped reproduction goes on."""

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from service.cpus import usable_cpus
from service.model.bundle import load_bundle
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
    device: DeviceChoice = "auto"
    precision: Precision = "auto"
    compiled: bool = False

    def run(self, training: Training) -> Path:
        return self.out / "runs" / training.name

    def bundle(self, training: Training) -> Path:
        return self.out / "bundles" / training.name / "1"

    def is_fitted(self, training: Training) -> bool:
        """Whether the training has ended; a folder that holds another one is refused."""
        record = self.run(training) / "run.json"
        if not record.is_file():
            return False
        identity = json.loads(record.read_text())
        if parse_recipe(identity["recipe"]) != training.load() or identity["seed"] != training.seed:
            raise RecipeError(
                f"{record.parent} holds another training than {training.name} as it is asked for now. Choose another "
                f"--out, or delete that folder."
            )
        return (record.parent / "result.json").is_file()

    def is_exported(self, training: Training) -> bool:
        """Whether there is a bundle of this very training."""
        bundle = self.bundle(training)
        if not (bundle / "bundle.json").is_file():
            return False
        result = self.run(training) / "result.json"
        if result.is_file() and result.stat().st_mtime > (bundle / "bundle.json").stat().st_mtime:
            raise RecipeError(f"{bundle} is older than the training {result.parent}. Delete it to export again.")
        load_bundle(bundle)  # raises if it is not whole
        return True

    def do_fit(self, training: Training, console: Console) -> None:
        options = FitOptions(
            recipe=training.recipe,
            out=self.run(training),
            seed=training.seed,
            changes=training.changes,
            data_root=self.data_root,
            folder=None,
            size=None,
            init=None,
            device=self.device,
            precision=self.precision,
            compiled=self.compiled,
            workers=usable_cpus(),
            checkpoint_seconds=60.0,
        )
        fit(options, console)

    def do_export(self, training: Training) -> None:
        """Thresholds from the calibration split, graphs checked against torch; the tables are measured later."""
        make_bundle(self.run(training), self.bundle(training), self.data_root, [], USUAL)


def finish_trainings(workspace: Workspace, trainings: tuple[Training, ...], console: Console) -> None:
    """Trains and exports whatever is not there yet, one after the other."""
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
