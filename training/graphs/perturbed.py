"""The perturbed graph of a bundle, made from its forward graph."""

import onnx

from training.graphs.gradient import add_input_preprocessing

ODIN_TEMPERATURE = 1000.0  # Liang et al. (2018), and the paper's comparison with it


def perturbed_graph(forward: onnx.ModelProto) -> onnx.ModelProto:
    """The forward graph with input preprocessing: towards more confidence, or ODIN for a plain classifier."""
    return add_input_preprocessing(forward, temperature=ODIN_TEMPERATURE)
