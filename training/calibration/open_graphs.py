"""A network's graphs in ONNX Runtime, and the scores that they offer."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from service.model.bundle import Input
from service.model.scores import Outputs, ScoreName
from training.graphs.gradient.cut import IMAGE
from training.graphs.image_views import AnyImages, as_served
from training.graphs.images_at_once import MOST_FORWARD, MOST_PERTURBED, images_at_once
from training.graphs.run import open_graph, run_graph
from training.graphs.work import work_of_one_image

PREPROCESSED = "_preprocessed"  # ends the names of outputs that only the perturbed graph has


@dataclass(frozen=True)
class OpenGraphs:
    """A network's graphs, and the size of their input.

    A graph is opened for each pass over images and closed after it: a session keeps a copy of the weights and as much
    memory as its largest batch needed, and only one is needed at a time.
    """

    forward_graph: onnx.ModelProto | Path
    perturbed_graph: onnx.ModelProto | Path | None
    shape: Input

    @classmethod
    def of(
        cls, forward: onnx.ModelProto | Path, perturbed: onnx.ModelProto | Path | None, shape: Input
    ) -> "OpenGraphs":
        return cls(forward, perturbed, shape)

    @property
    def has_confidence(self) -> bool:
        return "confidence_logit" in self._outputs

    @property
    def preprocessed_score(self) -> ScoreName | None:
        if self.perturbed_graph is None:
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

    def run(self, images: AnyImages, epsilon: float | None, step: str = "") -> Outputs:
        """Every output of the graphs, for images of any size; `step` says in progress lines what they are for."""
        if self.perturbed_graph is None:
            return self.run_forward(images, step)
        if epsilon == 0:
            return self.unperturbed(self.run_forward(images, step))
        served = as_served(images, self.shape)
        return run_graph(open_graph(self.perturbed_graph), served, self.perturbed_batch, epsilon, step)

    def unperturbed(self, clean: Outputs) -> Outputs:
        """What the perturbed graph answers with ε = 0, from the answers of the forward graph."""
        graph = self.perturbed_graph
        if graph is None:
            return clean
        known = onnx.load(graph, load_external_data=False) if isinstance(graph, Path) else graph
        return {output.name: clean[output.name.removesuffix(PREPROCESSED)] for output in known.graph.output}

    def run_forward(self, images: AnyImages, step: str = "") -> Outputs:
        """The outputs of the forward graph alone, which takes a quarter of the time."""
        return run_graph(open_graph(self.forward_graph), as_served(images, self.shape), self.forward_batch, step=step)

    @cached_property
    def forward_batch(self) -> int:
        """How many images the forward graph processes at a time."""
        return self.fixed_batch or images_at_once(self.forward_graph, MOST_FORWARD)

    @cached_property
    def perturbed_batch(self) -> int:
        """How many images the perturbed graph processes at a time."""
        if self.perturbed_graph is None:
            return 1
        return self.fixed_batch or images_at_once(self.perturbed_graph, MOST_PERTURBED)

    @cached_property
    def work(self) -> int | None:
        """Multiply-adds of the forward graph for one image: see `training.graphs.work`."""
        return work_of_one_image(self.forward_graph)

    @cached_property
    def fixed_batch(self) -> int | None:
        """The batch size that the graphs are fixed to, None where they take any."""
        (image,) = (value for value in self._structure.input if value.name == IMAGE)
        return image.type.tensor_type.shape.dim[0].dim_value or None

    @property
    def _outputs(self) -> tuple[str, ...]:
        return tuple(output.name for output in self._structure.output)

    @cached_property
    def _structure(self) -> onnx.GraphProto:
        model = self.forward_graph
        return (onnx.load(model, load_external_data=False) if isinstance(model, Path) else model).graph
