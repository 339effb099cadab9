"""Several bundles and their baselines, grouped by training data and network, with mean and spread over the pairs."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from service.model.bundle import Bundle, load_bundle
from service.model.session import Device
from training.errors import DataError
from training.evaluation.in_distribution import InDistribution, in_distribution_of
from training.evaluation.measure import (
    METHODS,
    EpsilonChoice,
    Measured,
    MeasuredNetwork,
    Method,
    NetworkRole,
    digest_of_graphs,
    measure_network,
)
from training.evaluation.ood_sets import MeasuredSet, OodSet, load_sets, refuse_own_images, refuse_own_sets
from training.evaluation.outputs import BundleOutputs
from training.evaluation.own_images import GivenFolders
from training.evaluation.progress import Progress, silent
from training.evaluation.scores import NetworkScores


@dataclass(frozen=True)
class Spread:
    """A mean over n trainings and the standard deviation between them; None for one training.

    One training may have a 95 % interval instead, over its test images: it says nothing about other trainings.
    """

    mean: float
    std: float | None
    n: int
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        found = list(values)
        return cls(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found))


@dataclass(frozen=True)
class Group:
    """Networks of one kind trained on one set: the i-th baseline belongs to the i-th bundle.

    The fields of this class and of `Evaluation` are keys of evaluation.json.
    """

    inside: str
    network: str
    fingerprint: str  # of the images and how they were split
    n_test: int
    n_calibration: int
    networks: tuple[MeasuredNetwork, ...]

    @property
    def methods(self) -> tuple[Method, ...]:
        """The columns that this group has figures for, in the table's order."""
        measured = {row.method for network in self.networks for row in network.rows}
        return tuple(method for method in METHODS if method.key in measured)

    def rows(self, method: str, ood: str) -> list[Measured]:
        """One for each network; empty if the method was not measured."""
        return [r for network in self.networks for r in network.rows if (r.method, r.outside) == (method, ood)]

    def spread(self, method: str, ood: str, metric: str) -> Spread | None:
        """None if one of the trainings lacks the figure: a mean over the others would be of fewer than it says."""
        rows = self.rows(method, ood)
        if not rows or any(metric not in row.metrics for row in rows):
            return None
        spread = Spread.of(row.metrics[metric] for row in rows)
        if len(rows) > 1 or rows[0].intervals is None:
            return spread
        return replace(spread, interval=rows[0].intervals.get(metric))

    def has(self, metric: str) -> bool:
        """Whether all trainings have this figure: evaluations made before AUGRC was measured lack it."""
        return all(metric in row.metrics for network in self.networks for row in network.rows)

    def classification_error(self, role: NetworkRole) -> Spread | None:
        found = [network.classification_error for network in self.networks if network.role == role]
        errors = [error for error in found if error is not None]
        return Spread.of(errors) if errors and len(errors) == len(found) else None

    @property
    def labelled(self) -> bool:
        """Whether the test images have labels."""
        return all(network.classification_error is not None for network in self.networks)


@dataclass(frozen=True)
class Evaluation:
    """All groups, and what they were measured on."""

    groups: tuple[Group, ...]
    outside: tuple[MeasuredSet, ...]
    epsilon: EpsilonChoice | None  # None: no preprocessed score was measured
    limit: int | None
    about_images: tuple[str, ...] = ()  # what to know about the folders of own images

    @property
    def has_intervals(self) -> bool:
        return any(row.intervals for group in self.groups for network in group.networks for row in network.rows)


@dataclass(frozen=True)
class Settings:
    """What an evaluation needs besides bundles."""

    ood: tuple[str, ...]
    data_root: Path
    out: Path
    epsilon: EpsilonChoice = "per-set"
    limit: int | None = None
    device: Device = "auto"
    runs: Mapping[Path, Path] = field(default_factory=dict)  # the training run of a bundle, if known
    preprocessed: bool = True  # also the scores that need the perturbed graph
    intervals: bool = False  # bootstrap intervals of every metric
    data: Path | None = None  # where the folder of images that the runs were trained on is now
    given: GivenFolders | None = None  # in place of the images that the bundles were calibrated and tested on


def evaluate(
    bundles: Iterable[Path], baselines: Iterable[Path], settings: Settings, progress: Progress = silent
) -> Evaluation:
    """Measures all bundles: `bundles` with a confidence branch or alone, `baselines` without one."""
    partners = [load_bundle(folder) for folder in baselines]
    loaded: list[tuple[NetworkRole, Bundle]] = []
    for bundle in map(load_bundle, bundles):
        loaded.append(("branch" if bundle.manifest.has_confidence else "baseline", bundle))
    loaded += [("baseline", bundle) for bundle in partners]
    placed = [
        (
            role,
            bundle,
            in_distribution_of(
                *(bundle, settings.data_root, settings.runs.get(bundle.folder), settings.limit, settings.data),
                settings.given,
            ),
        )
        for role, bundle in loaded
    ]
    for role, bundle, in_distribution in placed:
        _check(role, bundle, in_distribution, settings)
    inputs = list(dict.fromkeys(bundle.manifest.input for _, bundle, _ in placed))
    if len(inputs) > 1:
        raise DataError(
            f"the bundles take images in different ways: {'; '.join(map(str, inputs))}. Evaluate each kind by itself."
        )
    ood_sets = load_sets(list(settings.ood), settings.data_root, inputs[0], settings.limit)
    for _, bundle, in_distribution in placed:
        refuse_own_images(ood_sets, bundle, in_distribution)
    groups: dict[tuple[str, str], list[tuple[NetworkRole, Bundle, InDistribution]]] = {}
    for role, bundle, in_distribution in placed:
        groups.setdefault((in_distribution.dataset, in_distribution.network), []).append(
            (role, bundle, in_distribution)
        )
    for members in groups.values():
        _check_pairs(members, {bundle.folder for bundle in partners})
    return Evaluation(
        tuple(_measure_group(members, ood_sets, settings, progress) for members in groups.values()),
        tuple(one.measured for one in ood_sets),
        settings.epsilon if settings.preprocessed else None,
        settings.limit,
        tuple(dict.fromkeys(note for _, _, in_distribution in placed for note in in_distribution.notes)),
    )


def _measure_group(
    members: list[tuple[NetworkRole, Bundle, InDistribution]],
    ood_sets: tuple[OodSet, ...],
    settings: Settings,
    progress: Progress,
) -> Group:
    networks = []
    for role, bundle, in_distribution in members:
        outputs = BundleOutputs(bundle, settings.out / "scores", settings.device, _named(bundle, progress))
        scores = NetworkScores(outputs, settings.preprocessed)
        networks.append(measure_network(role, scores, in_distribution, ood_sets, settings.epsilon, settings.intervals))
    first = members[0][2]
    return Group(
        first.dataset, first.network, first.fingerprint, len(first.test), len(first.calibration), tuple(networks)
    )


def _named(bundle: Bundle, progress: Progress) -> Callable[[str, int, int], None]:
    name = f"{bundle.manifest.name}/{bundle.manifest.version}"
    return lambda what, done, total: progress(f"{name}: {what}", done, total)


def _check(role: str, bundle: Bundle, in_distribution: InDistribution, settings: Settings) -> None:
    if role == "baseline" and bundle.manifest.has_confidence:
        raise DataError(
            f"--baseline {bundle.folder} has a confidence branch; the baseline is the network trained without it "
            f"(a recipe that ends in -baseline)."
        )
    refuse_own_sets(settings.ood, bundle, in_distribution)


def _check_pairs(members: list[tuple[NetworkRole, Bundle, InDistribution]], partners: set[Path]) -> None:
    """A group needs as many baselines as bundles, or none, all trained on the same data, each training once."""
    by_role = {role: [bundle for r, bundle, _ in members if r == role] for role in ("branch", "baseline")}
    dataset, network = members[0][2].dataset, members[0][2].network
    unpaired = [bundle.folder for bundle in by_role["baseline"] if bundle.folder in partners]
    if not by_role["branch"] and unpaired:
        raise DataError(
            f"--baseline {unpaired[0]} is {network} on {dataset}, and no bundle with a branch is. "
            f"Give both of a pair, or neither."
        )
    check_numbers(f"{network} on {dataset}", len(by_role["branch"]), len(by_role["baseline"]))
    if len({in_distribution.fingerprint for _, _, in_distribution in members}) > 1:
        raise DataError(f"the bundles of {network} on {dataset} were trained on different images or splits of them.")
    seen: dict[str, Path] = {}
    for _, bundle, _ in members:
        first = seen.setdefault(digest_of_graphs(bundle), bundle.folder)
        if first is not bundle.folder:
            raise DataError(f"{first} and {bundle.folder} hold the same network. Give each training once.")


def check_numbers(what: str, branches: int, baselines: int) -> None:
    """As many baselines as networks with a branch, or none of one kind."""
    if branches and baselines not in (0, branches):
        raise DataError(
            f"{what}: {branches} bundles with a branch and {baselines} baselines. Give as many of both, or no baseline."
        )
