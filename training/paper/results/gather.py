"""The committed evaluations, one for each training: NAME-seedN.json, or NAME-budgetB-seedN.json of the sweep over β.

`shipped-NAME-VERSION-seedN.json` is the evaluation of a bundle in models/: the gate as it is served.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from training.errors import DataError
from training.evaluation.combine import combine, read_evaluation
from training.evaluation.evaluate import Evaluation, Group

_NAME = re.compile(r"(?P<name>.+?)(-budget(?P<budget>\d+(\.\d+)?))?-seed(?P<seed>\d+)")

_SHIPPED = re.compile(r"shipped-(?P<name>.+)-(?P<version>\d+)")


@dataclass(frozen=True)
class Result:
    """All trainings of one recipe, combined."""

    name: str
    budget: float | None  # β; None if neither the file's name nor its content has it
    of_sweep: bool  # one of the sweep over β, not a result by itself
    evaluation: Evaluation
    commands: dict[str, str]  # by file

    @property
    def shipped(self) -> str | None:
        """The folder of the bundle, as models/cifar10/5; None for a recipe's trainings."""
        found = _SHIPPED.fullmatch(self.name)
        return f"models/{found['name']}/{found['version']}" if found else None

    @property
    def group(self) -> Group:
        return self.evaluation.groups[0]


def read_results(folder: Path) -> list[Result]:
    """Every recipe that has an evaluation in the folder, sorted by name and β."""
    files: dict[tuple[str, float | None], list[tuple[int, Path]]] = {}
    for path in folder.glob("*.json"):
        found = _NAME.fullmatch(path.stem)
        if found is None:
            raise DataError(
                f"{path}: expected a name like compact-cifar10-seed0.json or compact-…-budget0.5-seed0.json."
            )
        budget = None if found["budget"] is None else float(found["budget"])
        files.setdefault((found["name"], budget), []).append((int(found["seed"]), path))
    ordered = sorted(files.items(), key=lambda item: (item[0][0], item[0][1] or 0.0))
    return [_result(name, budget, sorted(members)) for (name, budget), members in ordered]


def _result(name: str, budget: float | None, members: list[tuple[int, Path]]) -> Result:
    for seed, path in members:
        _check(read_evaluation(path), path, seed, budget)
    paths = [path for _, path in members]
    evaluation = combine(paths)
    if len(evaluation.groups) > 1:
        raise DataError(f"the files {name}-seedN.json hold different networks or data sets. Name them apart.")
    known = evaluation.groups[0].networks[0].budget if budget is None else budget
    commands = {path.name: json.loads(path.read_text(encoding="utf-8"))["command"] for path in paths}
    return Result(name, known, budget is not None, evaluation, commands)


def _check(evaluation: Evaluation, path: Path, seed: int, budget: float | None) -> None:
    """A file must hold what its name says: one training, measured on all images."""
    if evaluation.limit is not None:
        raise DataError(f"{path} is a quick look (--limit {evaluation.limit}), not a result. Evaluate all images.")
    networks = [network for group in evaluation.groups for network in group.networks if network.role == "branch"]
    if [network.seed for network in networks] != [seed]:
        raise DataError(
            f"{path} holds the seeds {[network.seed for network in networks]}, expected [{seed}] by its name: one "
            f"training a file."
        )
    if budget is not None and networks[0].budget not in (None, budget):
        raise DataError(f"{path} was trained with β = {networks[0].budget}, not {budget} as its name says.")
