"""Evaluations made at different times and places, combined from their evaluation.json alone."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from training.errors import DataError
from training.evaluation.evaluate import Evaluation, Group, check_numbers
from training.evaluation.measure import MeasuredNetwork
from training.evaluation.ood_sets import MeasuredSet, title_of
from training.evaluation.write import FORMAT

_EVALUATION = TypeAdapter(Evaluation)


@dataclass(frozen=True)
class Earlier:
    """An evaluation and the file that held it, for messages."""

    file: Path
    evaluation: Evaluation


def evaluation_file(path: Path) -> Path:
    """evaluation.json itself, or the one in a folder that `evaluate` wrote."""
    file = path / "evaluation.json" if path.is_dir() else path
    if not file.is_file():
        raise DataError(f"there is no {file}. Expected evaluation.json, or the --out folder of 'evaluate'.")
    return file


def read_evaluation(file: Path) -> Evaluation:
    """Reads what `evaluate` wrote; a file of another format, or a truncated one, is an error."""
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as problem:  # covers encoding and syntax
        raise DataError(f"{file} is not JSON: {problem}. Expected what 'evaluate' wrote.") from problem
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise DataError(
            f"{file} has format {found}, expected {FORMAT}. Make it again with 'evaluate'; where its scores are kept, "
            f"nothing is computed twice."
        )
    try:
        return _EVALUATION.validate_python(content)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{file} is not what 'evaluate' wrote: {where}: {first['msg']}. Make it again with 'evaluate'."
        ) from problem


def combine(files: Iterable[Path]) -> Evaluation:
    """One evaluation of all networks; those measured on other images or in another way are an error."""
    earlier = [Earlier(file, read_evaluation(file)) for file in files]
    _must_agree(earlier, "--limit", lambda one: one.limit)
    _must_agree(earlier, "choice of ε", lambda one: one.epsilon)
    _must_agree(earlier, "sets of images", lambda one: sorted(s.name for s in one.outside))
    for name in (one.name for one in earlier[0].evaluation.outside):
        _must_agree(earlier, f"images of {name}", partial(_set_named, name))
    members: dict[tuple[str, str], list[tuple[Path, Group]]] = {}
    for one in earlier:
        for group in one.evaluation.groups:
            members.setdefault((group.inside, group.network), []).append((one.file, group))
    about_images = dict.fromkeys(note for one in earlier for note in one.evaluation.about_images)
    joined = tuple(_joined(groups) for groups in members.values())
    return replace(earlier[0].evaluation, groups=joined, about_images=tuple(about_images))


def _set_named(name: str, evaluation: Evaluation) -> MeasuredSet:
    return next(one for one in evaluation.outside if one.name == name)


def _must_agree(earlier: list[Earlier], what: str, of: Callable[[Evaluation], object]) -> None:
    first = earlier[0]
    for other in earlier[1:]:
        a, b = of(first.evaluation), of(other.evaluation)
        if a != b:
            raise DataError(
                f"{first.file} and {other.file} differ in their {what}: {a} and {b}. Only what was measured alike, on "
                f"the same images, has a mean."
            )


def _joined(groups: list[tuple[Path, Group]]) -> Group:
    first_file, first = groups[0]
    what = f"{first.network} on {title_of(first.inside)}"
    for file, group in groups[1:]:
        for name in ("fingerprint", "n_test", "n_calibration"):
            a, b = getattr(first, name), getattr(group, name)
            if a != b:
                raise DataError(
                    f"{first_file} and {file} measured {what} on different images or splits of them: {name} is {a} "
                    f"and {b}."
                )
    networks = [(file, network) for file, group in groups for network in group.networks]
    _check_networks(what, networks)
    # Networks with a branch first, as `evaluate` has them; within each kind the order of the files pairs them.
    ordered = sorted((network for _, network in networks), key=lambda network: network.role != "branch")
    check_numbers(what, *(sum(n.role == role for n in ordered) for role in ("branch", "baseline")))
    return replace(first, networks=tuple(ordered))


def _check_networks(what: str, networks: list[tuple[Path, MeasuredNetwork]]) -> None:
    """Each training occurs once, and all of a role were trained and measured alike."""
    seen: dict[object, Path] = {}
    for file, network in networks:
        identities: list[object] = [network.graphs]
        if network.seed is not None:
            identities.append((network.role, network.recipe, network.seed, network.budget))
        for identity in identities:
            if identity in seen:
                raise DataError(
                    f"{seen[identity]} and {file} hold the same training: {network.recipe}, seed {network.seed} "
                    f"({network.bundle}). Give each one once."
                )
        seen |= dict.fromkeys(identities, file)
    for role in ("branch", "baseline"):
        own = [(file, network) for file, network in networks if network.role == role]
        for file, network in own[1:]:
            for name, of in _ALIKE.items():
                a, b = of(own[0][1]), of(network)
                if a != b and None not in (a, b):  # None: not known
                    raise DataError(
                        f"{what}: {own[0][0]} and {file} differ in the {name} of the {role} network: {a} and {b}. "
                        f"Combine trainings that differ in their seed alone."
                    )


_ALIKE: dict[str, Callable[[MeasuredNetwork], object]] = {
    "recipe": lambda network: network.recipe,
    "budget β": lambda network: network.budget,
    "scores": lambda network: sorted({row.method for row in network.rows}),
}
