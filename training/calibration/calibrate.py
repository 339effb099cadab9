"""From graphs and calibration images to the gate of a bundle: outputs → ε → scores → policies and pairs.

`export`, `import-onnx` and `calibrate` share this code, whether the graphs were just exported or come from a bundle on
disk. Everything is measured on ONNX Runtime's outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Default, Display, Histogram, Policy, Score, Typicality
from service.model.pairs import Pairs
from service.model.scores import (
    PREPROCESSED_SCORES,
    RELATIVE_SCORES,
    Floats,
    Outputs,
    ScoreName,
    histogram,
    score_images,
)
from training.calibration.epsilon import choose_epsilon, choose_epsilon_ood, epsilon_images, note_few, too_few_to_tell
from training.calibration.familiarity import FEWEST_CORRECT, Familiarity, learn_familiarity, weights_by, witnesses_of
from training.calibration.halves import Halves, halves_of
from training.calibration.open_graphs import OpenGraphs
from training.calibration.pair_policies import PairScores
from training.calibration.pairs import make_pairs, pair_scores, with_target_rejection
from training.calibration.policies import (
    TARGET_REJECTION,
    USUAL,
    CalibrationScores,
    Wanted,
    policies,
    target_rejection_policy,
    temperature_of,
)
from training.calibration.proxy_images import ProxyImages
from training.calibration.witnesses import dropped_witnesses
from training.data.ood import OodImages
from training.data.splits import LabelledImages, UnlabelledImages
from training.errors import DataError
from training.graphs.image_views import AnyImages, ChosenImages, as_served
from training.graphs.perturbed import ODIN_TEMPERATURE
from training.graphs.perturbed_images import perturbed_images_of
from training.graphs.work import images_within

EpsilonBy = Literal["auto", "ood", "misclassified"]
PROXY_IMAGES = 1_000
# Fewer for a network that takes long for each: 1,000 forward passes of a ViT-B take five minutes.
PROXY_WORK = 2 * 10**12
FEWEST_PROXIES = 100
PROXIES_OF_EACH = 4  # one of each kind: more of the same images would say nothing new
PROXY_SEED = 0
UNLABELLED = (
    "the calibration images are unlabelled: familiarity is measured against all of them, the temperature is 1, and "
    "what depends on mistakes is left out."
)


@dataclass(frozen=True)
class Evidence:
    """Images that set the thresholds, and images that figures are measured on."""

    name: str
    calibration: LabelledImages | UnlabelledImages
    test: LabelledImages | None
    ood: Mapping[str, OodImages] = field(default_factory=dict)
    # What the network was trained on, where it is known: the bank of neighbours is taken from it.
    train: LabelledImages | None = None
    # Calibration images that are in that bank: how similar they are to their neighbours, themselves left out.
    own_similarity: Mapping[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what their user should know about them
    test_name: str | None = None  # of a test folder of its own; None: the test images are of the same set

    @property
    def tested(self) -> str:
        """What the test images are called in figures and cards."""
        return self.name if self.test_name is None else self.test_name


@dataclass(frozen=True)
class Traffic:
    """Unlabelled images of the user's own, and the share of them to refuse."""

    images: AnyImages
    rate: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calibrated:
    """Scores with their policies, the pairs, and the outputs that they were computed from."""

    scores: dict[ScoreName, Score]
    pairs: Pairs
    default: Default
    in_distribution: Outputs
    right: NDArray[np.bool_] | None  # None: the calibration images are unlabelled
    ood: dict[str, Outputs]
    temperature: float
    epsilon: float | None
    epsilon_how: str
    notes: tuple[str, ...] = ()
    warning: str | None = None


def calibrate_graphs(
    graphs: OpenGraphs,
    evidence: Evidence,
    wanted: Wanted = USUAL,
    epsilon_by: EpsilonBy = "auto",
    traffic: Traffic | None = None,
) -> Calibrated:
    """Chooses ε, then makes every policy of every score that the graphs offer, and every pair."""
    in_distribution, truth = as_served(evidence.calibration.images, graphs.shape), evidence.calibration.labels
    notes = dict.fromkeys((*evidence.notes, *(() if traffic is None else traffic.notes)))
    epsilon, epsilon_how, known = _epsilon(graphs, in_distribution, truth, evidence, epsilon_by, notes)
    outputs = left_out_of_bank(
        graphs.run(in_distribution, epsilon, "scoring calibration images") if known is None else known,
        evidence.own_similarity,
    )
    right = None if truth is None else outputs["logits"].argmax(axis=1) == truth
    halves = halves_of(len(in_distribution))
    temperature = 1.0 if truth is None else temperature_of(outputs["logits"][halves.a], truth[halves.a])
    ood = {name: graphs.run(images.calibration, epsilon, f"scoring {name}") for name, images in evidence.ood.items()}
    if right is None:
        notes[UNLABELLED] = None
    proxies = graphs.run_forward(_proxies(in_distribution, graphs), "scoring OOD proxies")
    familiarity = _familiarity(graphs, outputs, right, halves, proxies, ood, notes)
    scores: dict[ScoreName, Score] = {}
    own: dict[ScoreName, Floats] = {}
    theirs = None if traffic is None else graphs.run(traffic.images, epsilon, "scoring traffic")
    for name in graphs.scores:
        typicality = familiarity.typicality if name == "typicality" else None
        of_score = {"certainty": temperature, "odin": ODIN_TEMPERATURE}.get(name)
        own[name] = familiarity.own if typicality else score_images(name, outputs, of_score)
        unmade = _without_policies(name, own[name], epsilon, of_score, typicality)
        others = {set_name: unmade.of_images(name, rows) for set_name, rows in ood.items()}
        made, missing = policies(CalibrationScores(own[name], right, others), wanted)
        notes |= dict.fromkeys(missing)
        if theirs is not None and traffic is not None:
            made[TARGET_REJECTION] = target_rejection_policy(unmade.of_images(name, theirs), traffic.rate)
        scores[name] = unmade.model_copy(update={"policies": made})
    pairs = make_pairs(
        PairScores(own["typicality"], own["certainty"], right),
        halves,
        pair_scores(scores, proxies),
        {name: pair_scores(scores, rows) for name, rows in ood.items()},
        wanted,
    )
    notes |= dict.fromkeys(pairs.notes)
    with_target = pairs.pairs
    if theirs is not None and traffic is not None:
        with_target = with_target_rejection(pairs.pairs, pairs.default, pair_scores(scores, theirs), traffic.rate)
    return Calibrated(
        scores=scores,
        pairs=with_target,
        default=pairs.default,
        in_distribution=outputs,
        right=right,
        ood=ood,
        temperature=temperature,
        epsilon=epsilon,
        epsilon_how=epsilon_how,
        notes=tuple(notes),
        warning=pairs.warning,
    )


def left_out_of_bank(outputs: Outputs, own_similarity: Mapping[int, float]) -> Outputs:
    """Images that are in the bank of neighbours get their similarity to the others in it."""
    if not own_similarity:
        return outputs
    similarity = outputs["neighbour_similarity"].copy()
    similarity[list(own_similarity)] = list(own_similarity.values())
    return {**outputs, "neighbour_similarity": similarity}


def _familiarity(
    graphs: OpenGraphs,
    outputs: Outputs,
    right: NDArray[np.bool_] | None,
    halves: Halves,
    proxies: Outputs,
    ood: Mapping[str, Outputs],
    notes: dict[str, None],
) -> Familiarity:
    """Ranks among the correctly classified images of half A, in every witness that the evidence leaves."""
    reference = halves.a if right is None else halves.a[right[halves.a]]
    if right is not None and len(reference) < FEWEST_CORRECT:
        notes[
            f"only {len(reference)} of {len(halves.a)} calibration images are classified correctly: familiarity is "
            "measured against all of them."
        ] = None
        reference = halves.a
    names = witnesses_of(graphs.scores)
    values: dict[ScoreName, Floats] = {name: score_images(name, outputs) for name in names}
    weights = weights_by(values, {name: score_images(name, proxies) for name in names})
    if ood and len(names) > 1:
        theirs: dict[ScoreName, Floats] = {
            name: np.concatenate([score_images(name, rows) for rows in ood.values()]) for name in names
        }

        def combined(scores: Mapping[ScoreName, Floats], kept: Sequence[ScoreName]) -> Floats:
            learnt = learn_familiarity({name: values[name] for name in kept}, reference, weights)
            return learnt.typicality.reference.log_odds({name: scores[name] for name in kept})

        for name in dropped_witnesses(values, theirs, combined):
            notes[f"familiarity does without {name}: the OOD images given are told apart better without it."] = None
            del values[name]
    return learn_familiarity(values, reference, weights)


def _proxies(images: AnyImages, graphs: OpenGraphs) -> ProxyImages:
    most = min(PROXY_IMAGES, max(FEWEST_PROXIES, PROXIES_OF_EACH * len(images)))
    n = images_within(PROXY_WORK, graphs.work, FEWEST_PROXIES, most)
    chosen = np.random.default_rng(PROXY_SEED).permutation(len(images))[:n]
    return ProxyImages(ChosenImages(images, np.sort(chosen)), n, PROXY_SEED)


def _epsilon(
    graphs: OpenGraphs,
    in_distribution: AnyImages,
    truth: NDArray[np.int64] | None,
    evidence: Evidence,
    by: EpsilonBy,
    notes: dict[str, None],
) -> tuple[float | None, str, Outputs | None]:
    """ε, how it was chosen, and the answers for the calibration images where they are known by then.

    `notes` gets one if what the network takes for each image is the reason that ε was chosen on few.
    """
    if by == "ood" and not evidence.ood:
        raise DataError("--epsilon-by ood needs out-of-distribution images. Name a set with --ood.")
    score = graphs.preprocessed_score
    if score is None or graphs.perturbed_graph is None:
        return None, "", None
    most = epsilon_images(graphs.work)
    if evidence.ood and by != "misclassified":
        ood = [as_served(images.calibration, graphs.shape) for images in evidence.ood.values()]
        sets = ", ".join(evidence.ood)
        note_few(in_distribution, most, notes)
        perturbed = perturbed_images_of(graphs.perturbed_graph)
        return (
            choose_epsilon_ood(perturbed, score, in_distribution, ood, graphs.perturbed_batch, most),
            f"ε has the least detection error between calibration images and held-out images of {sets}",
            None,
        )
    if truth is None and by == "misclassified":
        raise DataError("--epsilon-by misclassified needs labelled calibration images. Label them, or give --ood.")
    if truth is None:
        note_few(in_distribution, most, notes)
        perturbed = perturbed_images_of(graphs.perturbed_graph)
        return (
            choose_epsilon_ood(
                *(perturbed, score, in_distribution, [_proxies(in_distribution, graphs)], graphs.perturbed_batch, most)
            ),
            "ε has the least detection error between calibration images and images made from them",
            None,
        )
    clean = graphs.run_forward(in_distribution, "finding mistakes")
    right = clean["logits"].argmax(axis=1) == truth
    reason = too_few_to_tell(right)
    if reason is not None:
        return 0.0, f"ε is 0, because {reason}", graphs.unperturbed(clean)
    note_few(in_distribution, most, notes)
    perturbed = perturbed_images_of(graphs.perturbed_graph)
    return (
        choose_epsilon(perturbed, score, in_distribution, right, graphs.perturbed_batch, most),
        "ε has the least detection error between right and wrong answers on calibration images",
        None,
    )


_NOT_YET = {"not_yet": Policy(threshold=0, expected_rejection_rate=0, n=1, how="not made yet")}


def _without_policies(
    name: ScoreName, values: Floats, epsilon: float | None, temperature: float | None, typicality: Typicality | None
) -> Score:
    """A score with all it needs to be computed and shown, and its reference histogram; its policies come later."""
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
