"""The data of a report, measured once: scores of test images, thresholds, and which score separates best.

The best score is chosen on calibration images, by the rule that `calibrate` uses to recommend one. Everything that the
report shows about it is measured on test images.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Bundle, Manifest, load_bundle
from service.model.manifest import PAIR_SCORES
from service.model.scores import RELATIVE_SCORES, Floats, ScoreName, softmax
from service.model.session import Device
from training.calibration.calibrate import display_of
from training.calibration.pair_policies import Pair, PairScores
from training.calibration.recommend import Recommendation, best_score
from training.evaluation.calibration_set import calibration_set
from training.evaluation.in_distribution import in_distribution_of
from training.evaluation.ood_sets import OodSet, load_sets, refuse_own_images, refuse_own_sets
from training.evaluation.outputs import BundleOutputs, ImageSet
from training.evaluation.own_images import GivenFolders
from training.evaluation.progress import Progress, silent
from training.evaluation.scores import NetworkScores
from training.graphs.image_views import AnyImages
from training.metrics.detection import detection_error
from training.report.views import PairView, ScoreView


@dataclass(frozen=True)
class ReportData:
    """Everything that the pictures and the page are made from."""

    manifest: Manifest
    dataset: str
    network: str
    limit: int | None
    sets: tuple[OodSet, ...]
    scores: dict[ScoreName, ScoreView]
    best_for: dict[str, Recommendation]  # "ood" and "mistakes"
    test_images: AnyImages
    labels: NDArray[np.int64] | None  # None: only what needs no labels is shown
    probabilities: Floats  # [N,K] at the bundle's temperature
    ood_images: dict[str, AnyImages]
    ood_answers: dict[str, NDArray[np.int64]]
    pair: PairView | None = None  # None: a bundle of schema_version 1
    notes: tuple[str, ...] = ()  # what to know about the folders of own images

    @property
    def default(self) -> ScoreView:
        return self.scores[self.manifest.gated_score]

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether each test image is classified correctly; only of labelled images."""
        assert self.default.right is not None, "what needs labels is left out without them"
        return self.default.right

    @property
    def best(self) -> ScoreView:
        """The score that separates OOD images best, on calibration images."""
        return self.scores[self.best_for["ood"].score]

    @property
    def highlighted(self) -> tuple[ScoreView, ...]:
        """The default score and, if it is another one, the best."""
        return (self.default,) if self.best is self.default else (self.default, self.best)

    @property
    def default_pair(self) -> PairView | None:
        """None if the default gate asks about one score."""
        return self.pair if self.manifest.default.score is None else None

    @property
    def rankings(self) -> tuple[ScoreView, ...]:
        """Every score, and last the pair as a ranking: what curves are drawn of."""
        return (*self.scores.values(), *(() if self.pair is None else (self.pair.ranking,)))

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Which in-distribution test images the default gate accepts."""
        pair = self.default_pair
        return self.default.in_distribution > self.default_threshold if pair is None else ~pair.own_refusals.any

    def accepted_of(self, name: str) -> NDArray[np.bool_]:
        """Which images of an OOD set the default gate accepts."""
        pair = self.default_pair
        return self.default.ood[name] > self.default_threshold if pair is None else ~pair.ood_refusals(name).any

    @property
    def accepted_ood(self) -> NDArray[np.bool_]:
        return np.concatenate([self.accepted_of(name) for name in self.default.ood])

    @property
    def default_threshold(self) -> float:
        """Of a pair, that of familiarity; minus infinity where it refuses nothing."""
        default, manifest = self.manifest.default, self.manifest
        if default.score is not None:
            return manifest.scores[default.score].policies[default.policy].threshold
        assert manifest.pairs is not None
        familiarity = manifest.pairs.policies[default.policy].familiarity
        return -math.inf if familiarity is None else familiarity


def gather(
    folder: Path,
    ood: list[str],
    data_root: Path,
    out: Path,
    *,
    limit: int | None = None,
    device: Device = "auto",
    run: Path | None = None,
    data: Path | None = None,
    given: GivenFolders | None = None,
    preprocessed: bool = True,
    progress: Progress = silent,
) -> ReportData:
    """Scores all test and calibration images of a bundle, or reads the scores that an earlier run kept in `out`."""
    bundle = load_bundle(folder)
    in_distribution = in_distribution_of(bundle, data_root, run, limit, data, given)
    refuse_own_sets(ood, bundle, in_distribution)
    sets = load_sets(ood, data_root, bundle.manifest.input, limit)
    refuse_own_images(sets, bundle, in_distribution)
    parts = {images.name: images for one in sets for images in one.test}  # all_images shares its parts with others
    held = {images.name: images for one in sets for images in one.calibration}
    scores = NetworkScores(BundleOutputs(bundle, out / "scores", device, progress), preprocessed)
    test = ImageSet(f"{in_distribution.dataset} test", in_distribution.test.images)
    calibration = calibration_set(bundle, in_distribution)
    right_held = scores.right(calibration, in_distribution.calibration.labels)
    right = scores.right(test, in_distribution.test.labels)
    views: dict[ScoreName, ScoreView] = {}
    held_in: dict[ScoreName, Floats] = {}
    held_out: dict[ScoreName, Floats] = {}
    for name in scores.names:
        epsilon = scores.stored_epsilon(name)
        held_in[name] = scores.of(name, [calibration], epsilon)
        held_out[name] = scores.of(name, held.values(), epsilon)
        location, scale = _display(bundle, name, held_in[name])
        views[name] = ScoreView(
            name=name,
            in_distribution=scores.of(name, [test], epsilon),
            right=right,
            ood={images.name.removesuffix(" test"): scores.of(name, [images], epsilon) for images in parts.values()},
            misclassified_threshold=_misclassified(bundle, name, held_in[name], right_held),
            ood_threshold=detection_error(held_in[name], held_out[name]).value,
            location=location,
            scale=scale,
        )
    return ReportData(
        manifest=bundle.manifest,
        dataset=in_distribution.dataset,
        network=in_distribution.network,
        limit=limit,
        sets=sets,
        scores=views,
        best_for=_best_for(bundle, held_in, held_out, right_held),
        test_images=test.images,
        labels=in_distribution.test.labels,
        probabilities=softmax(scores.outputs.clean(test)["logits"], bundle.manifest.temperature),
        ood_images={images.name.removesuffix(" test"): images.images for images in parts.values()},
        ood_answers={
            images.name.removesuffix(" test"): scores.outputs.clean(images)["logits"].argmax(axis=1)
            for images in parts.values()
        },
        pair=_pair(bundle.manifest, scores, calibration, test, parts, right),
        notes=in_distribution.notes,
    )


def _pair(
    manifest: Manifest,
    scores: NetworkScores,
    calibration: ImageSet,
    test: ImageSet,
    parts: dict[str, ImageSet],
    right: NDArray[np.bool_] | None,
) -> PairView | None:
    """The default pair; of a bundle whose default is a single score, the first one."""
    if manifest.pairs is None:
        return None
    default, policies = manifest.default, manifest.pairs.policies
    policy = default.policy if default.score is None else next(iter(policies))
    chosen = policies[policy]

    def both(images: ImageSet, correct: NDArray[np.bool_] | None = None) -> PairScores:
        familiarity, certainty = (scores.of(score, [images], None) for score in PAIR_SCORES)
        return PairScores(familiarity, certainty, correct)

    sets = {images.name.removesuffix(" test"): images for images in parts.values()}
    return PairView(
        policy=policy,
        pair=Pair(chosen.familiarity, chosen.certainty, chosen.how),
        own=both(test, right),
        ood={name: both(images) for name, images in sets.items()},
        ranking=ScoreView(
            name="pair",
            in_distribution=scores.of_pair([test], calibration),
            right=right,
            ood={name: scores.of_pair([images], calibration) for name, images in sets.items()},
            misclassified_threshold=None,
            ood_threshold=None,
        ),
    )


def _best_for(
    bundle: Bundle,
    in_distribution: dict[ScoreName, Floats],
    ood: dict[ScoreName, Floats],
    right: NDArray[np.bool_] | None,
) -> dict[str, Recommendation]:
    usual = bundle.manifest.gated_score
    found = {"ood": best_score("ood", usual, in_distribution, ood)}
    if right is not None and right.any() and not right.all():
        accept = {name: values[right] for name, values in in_distribution.items()}
        refuse = {name: values[~right] for name, values in in_distribution.items()}
        found["mistakes"] = best_score("mistakes", usual, accept, refuse)
    return found


def _display(bundle: Bundle, name: ScoreName, held_in: Floats) -> tuple[float, float]:
    """How an unbounded score is shown: as the bundle says, or as calibration would choose."""
    if name not in RELATIVE_SCORES:
        return 0.0, 1.0
    stored = bundle.manifest.scores.get(name)
    display = stored.display if stored is not None and stored.display is not None else display_of(held_in)
    return display.location, display.scale


def _misclassified(bundle: Bundle, name: ScoreName, held_in: Floats, right: NDArray[np.bool_] | None) -> float | None:
    """The bundle's own threshold if it has one, else what calibration would choose."""
    stored = bundle.manifest.scores.get(name)
    if stored is not None and "misclassified" in stored.policies:
        return stored.policies["misclassified"].threshold
    if right is None or right.all() or not right.any():
        return None
    return detection_error(held_in[right], held_in[~right]).value
