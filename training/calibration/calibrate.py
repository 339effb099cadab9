"""From graphs and calibration images to the scores of a bundle: outputs → ε → scores → policies.

`export`, `import-onnx` and `calibrate` share this code, whether the graphs were just exported or come from a bundle on
disk. Everything is measured on ONNX Runtime's outputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from service.model.bundle import Display, Histogram, Input, Policy, Score, Typicality
from service.model.scores import (
    PREPROCESSED_SCORES,
    RELATIVE_SCORES,
    Floats,
    Outputs,
    ScoreName,
    histogram,
    score_images,
)
from service.model.typicality import Ranks, lowest_rank, quantiles_of
from training.calibration.epsilon import choose_epsilon, choose_epsilon_ood
from training.calibration.policies import (
    TARGET_REJECTION,
    USUAL,
    CalibrationScores,
    Wanted,
    policies,
    target_rejection_policy,
    temperature_of,
)
from training.data.ood import OodImages
from training.data.splits import LabelledImages
from training.errors import DataError
from training.graphs.perturbed import ODIN_TEMPERATURE
from training.graphs.perturbed_images import perturbed_images_of
from training.graphs.run import AnyImages, as_served, open_graph, run_graph

EpsilonBy = Literal["auto", "ood", "misclassified"]
FEWEST_TYPICAL = 100  # correctly classified images: with fewer, a p-value could not be as small as 1 in 200


@dataclass(frozen=True)
class OpenGraphs:
    """A network's graphs in ONNX Runtime, and the size of their input."""

    forward: onnxruntime.InferenceSession
    perturbed: onnxruntime.InferenceSession | None
    perturbed_graph: onnx.ModelProto | Path | None  # what `perturbed` was opened from
    shape: Input

    @classmethod
    def of(
        cls, forward: onnx.ModelProto | Path, perturbed: onnx.ModelProto | Path | None, shape: Input
    ) -> "OpenGraphs":
        return cls(open_graph(forward), None if perturbed is None else open_graph(perturbed), perturbed, shape)

    @property
    def has_confidence(self) -> bool:
        return "confidence_logit" in [output.name for output in self.forward.get_outputs()]

    @property
    def preprocessed_score(self) -> ScoreName | None:
        if self.perturbed is None:
            return None
        return "confidence_preprocessed" if self.has_confidence else "odin"

    @property
    def scores(self) -> tuple[ScoreName, ...]:
        """Every score they offer; a bundle is gated on the first one by default."""
        names: list[ScoreName] = ["confidence"] if self.has_confidence else []
        names += ["max_softmax", "energy", "max_logit", "typicality"]
        return (*names, self.preprocessed_score) if self.preprocessed_score else tuple(names)

    def run(self, images: AnyImages, epsilon: float | None) -> Outputs:
        """Every output of the graphs, for images of any size."""
        session = self.forward if self.perturbed is None else self.perturbed
        return run_graph(session, as_served(images, self.shape), epsilon=epsilon)


@dataclass(frozen=True)
class Evidence:
    """Images that set the thresholds, and images that figures are measured on."""

    name: str
    calibration: LabelledImages
    test: LabelledImages | None
    ood: Mapping[str, OodImages] = field(default_factory=dict)


@dataclass(frozen=True)
class Traffic:
    """Unlabelled images of the user's own, and the share of them to refuse."""

    images: NDArray[np.uint8]
    rate: float


@dataclass(frozen=True)
class Calibrated:
    """Scores with their policies, and the outputs that they were computed from."""

    scores: dict[ScoreName, Score]
    in_distribution: Outputs
    right: NDArray[np.bool_]
    ood: dict[str, Outputs]
    temperature: float
    epsilon: float | None
    epsilon_how: str
    notes: tuple[str, ...] = ()


def calibrate_graphs(
    graphs: OpenGraphs,
    evidence: Evidence,
    wanted: Wanted = USUAL,
    epsilon_by: EpsilonBy = "auto",
    traffic: Traffic | None = None,
) -> Calibrated:
    """Chooses ε, then makes every policy of every score that the graphs offer."""
    in_distribution, truth = as_served(evidence.calibration.images, graphs.shape), evidence.calibration.labels
    epsilon, epsilon_how = _epsilon(graphs, in_distribution, truth, evidence, epsilon_by)
    outputs = graphs.run(in_distribution, epsilon)
    right = outputs["logits"].argmax(axis=1) == truth
    ood = {name: graphs.run(images.calibration, epsilon) for name, images in evidence.ood.items()}
    own = None if traffic is None else graphs.run(traffic.images, epsilon)
    scores: dict[ScoreName, Score] = {}
    notes: dict[str, None] = {}
    for name in graphs.scores:
        if name == "typicality" and right.sum() < FEWEST_TYPICAL:
            notes[
                f"left out score 'typicality': it needs {FEWEST_TYPICAL} correctly classified calibration images, and "
                f"there are {int(right.sum())}."
            ] = None
            continue
        unmade = _without_policies(name, outputs, right, epsilon, graphs.has_confidence)
        values = unmade.of_images(name, outputs)
        others = {set_name: unmade.of_images(name, theirs) for set_name, theirs in ood.items()}
        made, missing = policies(CalibrationScores(values, right, others), wanted)
        notes |= dict.fromkeys(missing)
        if own is not None and traffic is not None:
            made[TARGET_REJECTION] = target_rejection_policy(unmade.of_images(name, own), traffic.rate)
        scores[name] = unmade.model_copy(update={"policies": made})
    return Calibrated(
        scores=scores,
        in_distribution=outputs,
        right=right,
        ood=ood,
        temperature=temperature_of(outputs["logits"], truth),
        epsilon=epsilon,
        epsilon_how=epsilon_how,
        notes=tuple(notes),
    )


def _epsilon(
    graphs: OpenGraphs,
    in_distribution: AnyImages,
    truth: NDArray[np.int64],
    evidence: Evidence,
    by: EpsilonBy,
) -> tuple[float | None, str]:
    if by == "ood" and not evidence.ood:
        raise DataError("--epsilon-by ood needs out-of-distribution images. Name a set with --ood.")
    score = graphs.preprocessed_score
    if score is None or graphs.perturbed_graph is None:
        return None, ""
    perturbed = perturbed_images_of(graphs.perturbed_graph)
    if evidence.ood and by != "misclassified":
        ood = [as_served(images.calibration, graphs.shape) for images in evidence.ood.values()]
        sets = ", ".join(evidence.ood)
        return (
            choose_epsilon_ood(perturbed, score, in_distribution, ood),
            f"ε has the least detection error between calibration images and held-out images of {sets}",
        )
    right = run_graph(graphs.forward, in_distribution)["logits"].argmax(axis=1) == truth
    return (
        choose_epsilon(perturbed, score, in_distribution, right),
        "ε has the least detection error between right and wrong answers on calibration images",
    )


_NOT_YET = {"not_yet": Policy(threshold=0, expected_rejection_rate=0, n=1, how="not made yet")}


def _without_policies(
    name: ScoreName, outputs: Outputs, right: NDArray[np.bool_], epsilon: float | None, has_confidence: bool
) -> Score:
    """A score with all it needs to be computed and shown, and its reference histogram; its policies come later."""
    temperature = ODIN_TEMPERATURE if name == "odin" else None
    typicality = _typicality(outputs, right, has_confidence) if name == "typicality" else None
    values = score_images(name, outputs, temperature, None if typicality is None else typicality.reference)
    display = display_of(values) if name in RELATIVE_SCORES else None
    location, scale = (display.location, display.scale) if display else (0.0, 1.0)
    return Score(
        epsilon=epsilon if name in PREPROCESSED_SCORES else None,
        temperature=temperature,
        display=display,
        typicality=typicality,
        reference=Histogram(counts=histogram(values, location, scale)),
        policies=_NOT_YET,
    )


def display_of(values: Floats) -> Display:
    """The calibration images' median is shown as ½ and their quartiles as ¼ and ¾: sigmoid(±ln 3)."""
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    scale = float((high - low) / (2 * np.log(3)))
    return Display(location=float(median), scale=scale if scale > 0 else 1.0)


def _typicality(outputs: Outputs, right: NDArray[np.bool_], has_confidence: bool) -> Typicality:
    names: tuple[ScoreName, ...] = ("confidence" if has_confidence else "max_softmax", "energy")
    values: dict[str, Floats] = {name: score_images(name, outputs)[right] for name in names}
    n = int(right.sum())
    quantiles = {name: quantiles_of(values[name]) for name in names}
    ranks: dict[str, Ranks] = {name: Ranks.of_quantiles(quantiles[name], n) for name in names}
    return Typicality(n=n, components=quantiles, minimum=quantiles_of(lowest_rank(ranks, values)))
