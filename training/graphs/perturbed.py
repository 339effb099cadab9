"""The perturbed graph of a bundle, made from its forward graph.

A bundle can do without it: where an operator has no gradient rule, or the result cannot be trusted, there is none.
"""

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from service.model.images import Pixels
from service.model.session import RUNTIME_ERRORS
from training.graphs.gradient import GradientError, add_input_preprocessing
from training.graphs.gradient.cut import EPSILON, IMAGE, perturbation
from training.graphs.run import open_graph

ODIN_TEMPERATURE = 1000.0  # Liang et al. (2018), and the paper's comparison with it


@dataclass(frozen=True)
class Perturbed:
    """A perturbed graph, or a note that says why there is none."""

    graph: onnx.ModelProto | None
    note: str | None = None


def perturbed_or_note(forward: onnx.ModelProto) -> Perturbed:
    """The perturbed graph where there can be one; never an error."""
    try:
        return Perturbed(perturbed_graph(forward))
    except GradientError as problem:
        return Perturbed(None, no_perturbed_graph(forward, problem))


def no_perturbed_graph(forward: onnx.ModelProto, problem: GradientError) -> str:
    """What the user is told: which score the bundle lacks, and the operator that is the reason."""
    has_branch = any(value.name == "confidence_logit" for value in forward.graph.output)
    score = "confidence_preprocessed" if has_branch else "odin (ODIN)"
    return f"no input preprocessing, and no score {score}: {problem}"


def perturbed_graph(forward: onnx.ModelProto) -> onnx.ModelProto:
    """The forward graph with input preprocessing: towards more confidence, or ODIN for a plain classifier.

    Raises GradientError where there can be none, also if ONNX Runtime cannot run it or its gradient is not finite.
    """
    perturbed = add_input_preprocessing(forward, temperature=ODIN_TEMPERATURE)
    for what, gradient in _gradients(perturbed).items():
        if not np.isfinite(gradient).all():
            raise GradientError(f"the gradient of the graph is not finite for {what}")
    return perturbed


def _gradients(perturbed: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
    """The gradients of plain images. The graph takes their sign, and none is an output of it."""
    found = perturbation(perturbed.graph)
    assert found is not None, "add_input_preprocessing makes this step"
    sign = next(node for node in perturbed.graph.node if found[1] in node.output)
    perturbed.graph.output.append(helper.make_tensor_value_info(sign.input[0], TensorProto.FLOAT, None))
    try:
        session = open_graph(perturbed)
        epsilon = np.zeros((), np.float32)
        return {
            what: np.asarray(session.run([sign.input[0]], {IMAGE: images, EPSILON: epsilon})[0])
            for what, images in _plain_images(perturbed).items()
        }
    except RUNTIME_ERRORS as problem:
        raise GradientError(f"ONNX Runtime cannot run the perturbed graph ({problem})") from problem
    finally:
        del perturbed.graph.output[-1]


def _plain_images(perturbed: onnx.ModelProto) -> dict[str, Pixels]:
    """What cameras also send: at a black image, square roots and logarithms have no derivative."""
    (image,) = (value for value in perturbed.graph.input if value.name == IMAGE)
    batch, *size = (dimension.dim_value for dimension in image.type.tensor_type.shape.dim)
    shape = (batch or 2, *size)
    noise = np.random.default_rng(0).integers(1, 255, shape, dtype=np.uint8)  # neither black nor white anywhere
    return {"an image of noise": noise, "a black image": np.zeros_like(noise), "a white one": np.full_like(noise, 255)}
