"""A network's graphs in ONNX Runtime, and the scores that they offer."""

from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime

from service.model.bundle import Input
from service.model.scores import Outputs, ScoreName
from training.graphs.run import AnyImages, as_served, open_graph, run_graph


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
        return "confidence_logit" in self._outputs

    @property
    def preprocessed_score(self) -> ScoreName | None:
        if self.perturbed is None:
            return None
        return "confidence_preprocessed" if self.has_confidence else "odin"

    @property
    def scores(self) -> tuple[ScoreName, ...]:
        """Every score that they offer."""
        names: list[ScoreName] = ["confidence"] if self.has_confidence else []
        names += ["max_softmax", "energy", "max_logit"]
        names += ["neighbours"] if "neighbour_similarity" in self._outputs else []
        names += ["typicality", "certainty"]
        return (*names, self.preprocessed_score) if self.preprocessed_score else tuple(names)

    def run(self, images: AnyImages, epsilon: float | None) -> Outputs:
        """Every output of the graphs, for images of any size."""
        session = self.forward if self.perturbed is None else self.perturbed
        return run_graph(session, as_served(images, self.shape), epsilon=epsilon)

    def run_forward(self, images: AnyImages) -> Outputs:
        """The outputs of the forward graph alone, which takes a quarter of the time."""
        return run_graph(self.forward, as_served(images, self.shape))

    @property
    def _outputs(self) -> list[str]:
        return [output.name for output in self.forward.get_outputs()]
