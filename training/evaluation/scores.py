"""Scores of images under a bundle, by ONNX Runtime on its exported graphs: what is measured is what is served.

Every score that the graphs allow can be asked for, also of a bundle that was written before that score existed;
only `typicality` needs the quantiles that a newer bundle holds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Bundle
from service.model.scores import PREPROCESSED_SCORES, Floats, ScoreName, score_images
from training.errors import DataError
from training.graphs.run import as_served, open_graph, run_graph

FORWARD_SCORES: tuple[ScoreName, ...] = ("max_softmax", "energy", "max_logit")  # any classifier has these


@dataclass(frozen=True)
class ScoredImages:
    """Every score asked for [N], and the logits [N,K] they go with."""

    scores: dict[ScoreName, Floats]
    logits: NDArray[np.float32]

    def right(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each answer is right."""
        return np.asarray(self.logits.argmax(axis=1) == labels)


def needs_perturbed_graph(name: ScoreName) -> bool:
    """Whether a score is read from the perturbed graph, at three to four times the work of the forward one."""
    return name in PREPROCESSED_SCORES


def scores_of(bundle: Bundle) -> tuple[ScoreName, ...]:
    """Every score that can be computed with this bundle: confidence first, what needs the perturbed graph last."""
    manifest = bundle.manifest
    names: list[ScoreName] = ["confidence"] if manifest.has_confidence else []
    names += FORWARD_SCORES
    if "typicality" in manifest.scores:
        names.append("typicality")
    if manifest.preprocessed_score is not None:
        names.append(manifest.preprocessed_score)
    return tuple(names)


def score_bundle(
    bundle: Bundle, images: NDArray[np.uint8], names: Iterable[ScoreName] | None = None
) -> dict[ScoreName, Floats]:
    """Scores [N], on the unbounded scale, of uint8 images [N,H,W,3] of any size; all that there are unless named."""
    return score_with_logits(bundle, images, names).scores


def score_with_logits(
    bundle: Bundle, images: NDArray[np.uint8], names: Iterable[ScoreName] | None = None
) -> ScoredImages:
    """The same together with the logits, from one run of one graph."""
    wanted = _checked(bundle, names)
    manifest = bundle.manifest
    preprocessed = next((name for name in wanted if needs_perturbed_graph(name)), None)
    session = open_graph(bundle.graph_path("forward" if preprocessed is None else "perturbed"))
    epsilon = None if preprocessed is None else manifest.scores[preprocessed].epsilon
    outputs = run_graph(session, as_served(images, manifest.input), epsilon=epsilon)
    return ScoredImages(
        {
            name: manifest.scores[name].of_images(name, outputs)
            if name in manifest.scores
            else score_images(name, outputs)
            for name in wanted
        },
        outputs["logits"],
    )


def _checked(bundle: Bundle, names: Iterable[ScoreName] | None) -> Sequence[ScoreName]:
    offered = scores_of(bundle)
    if names is None:
        return offered
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in get_args(ScoreName):
            raise DataError(f"score '{name}' is unknown, expected one of {', '.join(get_args(ScoreName))}.")
        if name not in offered:
            raise DataError(
                f"{bundle.folder} cannot give the score '{name}', only {', '.join(offered)}. "
                + (
                    "Write a new version of it with 'confgate-train calibrate'."
                    if name == "typicality"
                    else "That score belongs to another kind of network."
                )
            )
    return wanted
