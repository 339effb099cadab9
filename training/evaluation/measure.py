"""One network on its in-distribution test images and on OOD sets: every score, its metrics, three thresholds.

ε and thresholds come from calibration images. Only `best on test` chooses a threshold on test images: it is the
detection error itself, by its definition.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Bundle
from service.model.scores import Floats, ScoreName
from training.calibration.epsilon import EPSILONS, epsilon_images, least_error
from training.calibration.policies import FEWEST_MISTAKES
from training.evaluation.calibration_set import calibration_set
from training.evaluation.in_distribution import InDistribution, spread_indices
from training.evaluation.ood_sets import OodSet
from training.evaluation.outputs import ImageSet
from training.evaluation.scores import NetworkScores
from training.graphs.image_views import ChosenImages
from training.metrics.detection import detection_error, detection_error_at, detection_metrics
from training.metrics.intervals import Intervals, detection_intervals
from training.metrics.mixed_traffic import MIXED_AUGRC, mixed_augrc

NetworkRole = Literal["baseline", "branch"]
# per-set: the paper's way, one ε for each out-of-distribution set; per-model: one for all of them together;
# bundle: the one in the bundle, which is served.
EpsilonChoice = Literal["per-set", "per-model", "bundle"]


@dataclass(frozen=True)
class Method:
    """A column of the table: a score of the baseline network or of the network with the branch, or its pair."""

    key: str
    title: str
    role: NetworkRole
    score: ScoreName | None  # None: both questions at once, as `NetworkScores.of_pair` ranks images


METHODS = (
    Method("baseline", "baseline", "baseline", "max_softmax"),
    Method("confidence", "confidence", "branch", "confidence"),
    Method("odin", "ODIN", "baseline", "odin"),
    Method("confidence_preprocessed", "confidence + preprocessing", "branch", "confidence_preprocessed"),
    Method("branch_max_softmax", "max softmax (branch net)", "branch", "max_softmax"),
    Method("branch_energy", "energy (branch net)", "branch", "energy"),
    Method("branch_max_logit", "max logit (branch net)", "branch", "max_logit"),
    Method("branch_neighbours", "neighbours (branch net)", "branch", "neighbours"),
    Method("branch_typicality", "typicality (branch net)", "branch", "typicality"),
    Method("branch_certainty", "certainty (branch net)", "branch", "certainty"),
    Method("branch_pair", "familiarity and certainty (branch net)", "branch", None),
    Method("baseline_energy", "energy (baseline net)", "baseline", "energy"),
    Method("baseline_max_logit", "max logit (baseline net)", "baseline", "max_logit"),
    Method("baseline_neighbours", "neighbours (baseline net)", "baseline", "neighbours"),
    Method("baseline_typicality", "typicality (baseline net)", "baseline", "typicality"),
    Method("baseline_certainty", "certainty (baseline net)", "baseline", "certainty"),
    Method("baseline_pair", "familiarity and certainty (baseline net)", "baseline", None),
)
PAPER_PAIRS = (("baseline", "confidence"), ("odin", "confidence_preprocessed"))


@dataclass(frozen=True)
class Thresholds:
    """δ on the score's unbounded scale, and the detection error of each on the test images."""

    best: float
    best_error: float
    on_ood: float
    on_ood_error: float
    on_misclassified: float | None  # None: too few mistakes to calibrate on
    on_misclassified_error: float | None


@dataclass(frozen=True)
class Measured:
    """One method on one OOD set; shares are fractions. The fields are keys of evaluation.json.

    Evaluations made before AUGRC was measured lack it in `metrics`, and so do those of unlabelled test images.
    Thresholds of a pair are ranks, between 0 and 1.
    """

    method: str
    outside: str
    metrics: dict[str, float]
    thresholds: Thresholds
    epsilon: float | None
    n_inside: int
    n_outside: int
    intervals: Intervals | None = None  # 95 %, over the test images, of the paper's metrics; None: not computed


@dataclass(frozen=True)
class MeasuredNetwork:
    """One training; `graphs` identifies it, also among bundles of the same name."""

    bundle: str
    role: NetworkRole
    graphs: str
    recipe: str
    seed: int | None
    classification_error: float | None  # None: the test images have no labels
    n: int
    rows: tuple[Measured, ...]
    budget: float | None = None  # β; None: a baseline, or its training run was not given


def measure_network(
    role: NetworkRole,
    scores: NetworkScores,
    in_distribution: InDistribution,
    ood_sets: Iterable[OodSet],
    choice: EpsilonChoice,
    intervals: bool = False,
) -> MeasuredNetwork:
    """Every method of this network, on every set."""
    sets = tuple(ood_sets)
    test = ImageSet(f"{in_distribution.dataset} test", in_distribution.test.images)
    calibration = calibration_set(scores.outputs.bundle, in_distribution)
    right = scores.right(calibration, in_distribution.calibration.labels)
    answers_right = scores.right(test, in_distribution.test.labels)
    rows = []
    for method in _methods(role, scores):
        epsilons = _epsilons(method.score, scores, calibration, sets, choice)
        _prepare_chosen(scores, (calibration, test), sets, epsilons)
        for one in sets:
            epsilon = epsilons[one.name]
            held_in, held_out, test_in, test_out = (
                scores.of_pair(images, calibration)
                if method.score is None
                else scores.of(method.score, images, epsilon)
                for images in ([calibration], one.calibration, [test], one.test)
            )
            of_mistakes = {}
            if answers_right is not None:
                of_mistakes[MIXED_AUGRC] = mixed_augrc(test_in, answers_right, test_out)
            rows.append(
                Measured(
                    method=method.key,
                    outside=one.name,
                    metrics=asdict(detection_metrics(test_in, test_out)) | of_mistakes,
                    thresholds=_thresholds(held_in, right, held_out, test_in, test_out),
                    epsilon=epsilon,
                    n_inside=len(test_in),
                    n_outside=len(test_out),
                    intervals=detection_intervals(test_in, test_out) if intervals else None,
                )
            )
    bundle = scores.outputs.bundle
    made = bundle.manifest.provenance
    return MeasuredNetwork(
        bundle=f"{bundle.folder.parent.name}/{bundle.folder.name}",
        role=role,
        graphs=digest_of_graphs(bundle),
        recipe=made.recipe,
        seed=made.seed,
        classification_error=None if answers_right is None else float(1 - answers_right.mean()),
        n=len(test),
        rows=tuple(rows),
        budget=in_distribution.budget if role == "branch" else None,
    )


def _methods(role: NetworkRole, scores: NetworkScores) -> list[Method]:
    """The columns that this network has figures for."""
    return [
        method
        for method in METHODS
        if method.role == role and (scores.has_pair if method.score is None else method.score in scores.names)
    ]


def digest_of_graphs(bundle: Bundle) -> str:
    """Of the forward graph and its weights: the same for all versions of a bundle that differ in calibration only."""
    digest = hashlib.sha256()
    for file in (bundle.manifest.graphs["forward"], *bundle.manifest.external_data):
        digest.update(file.sha256.encode())
    return digest.hexdigest()[:16]


def _epsilons(
    score: ScoreName | None,
    scores: NetworkScores,
    calibration: ImageSet,
    sets: tuple[OodSet, ...],
    choice: EpsilonChoice,
) -> dict[str, float | None]:
    """The ε for each set; None for a score without preprocessing, and for a pair."""
    stored = None if score is None else scores.stored_epsilon(score)
    if score is None or stored is None:
        return {one.name: None for one in sets}
    if choice == "bundle":
        return {one.name: stored for one in sets}
    chosen = spread_indices(len(calibration), epsilon_images(scores.outputs.work))
    few = ImageSet(calibration.name, ChosenImages(calibration.images, chosen))
    if choice == "per-set":
        return {one.name: best_epsilon(score, scores, few, one.calibration) for one in sets}
    together = {images.name: images for one in sets for images in one.calibration}  # all_images shares its parts
    best = best_epsilon(score, scores, few, tuple(together.values()))
    return {one.name: best for one in sets}


def best_epsilon(score: ScoreName, scores: NetworkScores, calibration: ImageSet, ood: tuple[ImageSet, ...]) -> float:
    """The ε of least detection error between in-distribution and OOD calibration images."""
    for images in (calibration, *ood):
        scores.outputs.prepare(images, EPSILONS)
    return least_error(
        (scores.of(score, [calibration], epsilon) for epsilon in EPSILONS),
        (scores.of(score, ood, epsilon) for epsilon in EPSILONS),
    )


def _prepare_chosen(
    scores: NetworkScores, own: tuple[ImageSet, ...], sets: tuple[OodSet, ...], epsilons: dict[str, float | None]
) -> None:
    """Computes all ε of an image set in one pass: sets of the table may share images, and need different ε."""
    together: dict[str, tuple[ImageSet, set[float]]] = {}
    for one in sets:
        epsilon = epsilons[one.name]
        if epsilon is not None:
            for images in (*own, *one.calibration, *one.test):
                together.setdefault(images.name, (images, set()))[1].add(epsilon)
    for images, wanted in together.values():
        scores.outputs.prepare(images, wanted)


def _thresholds(
    held_in: Floats, right: NDArray[np.bool_] | None, held_out: Floats, test_in: Floats, test_out: Floats
) -> Thresholds:
    best = detection_error(test_in, test_out)
    on_ood = detection_error(held_in, held_out).value
    on_misclassified = None
    if right is not None and FEWEST_MISTAKES <= (~right).sum() < len(right):
        on_misclassified = detection_error(held_in[right], held_in[~right]).value
    return Thresholds(
        best=best.value,
        best_error=best.detection_error,
        on_ood=on_ood,
        on_ood_error=detection_error_at(on_ood, test_in, test_out),
        on_misclassified=on_misclassified,
        on_misclassified_error=(
            None if on_misclassified is None else detection_error_at(on_misclassified, test_in, test_out)
        ),
    )
