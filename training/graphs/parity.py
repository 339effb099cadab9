"""Exported graphs against torch: a graph whose outputs differ is rejected."""

from collections.abc import Sequence

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from service.model.scores import ScoreName, score_images, sigmoid
from training.data.normalise import normalise
from training.errors import ExportError
from training.graphs.from_torch import NamedOutputs, output_names
from training.graphs.images_at_once import images_at_once
from training.graphs.perturbed import ODIN_TEMPERATURE
from training.graphs.run import open_graph, run_graph
from training.networks import Classifier

PARITY_BATCHES = (1, 2, 7, 32)
TOLERANCE = 1e-4


@torch.no_grad()
def check_parity(
    model: onnx.ModelProto,
    network: Classifier,
    mean: Sequence[float],
    std: Sequence[float],
    images: NDArray[np.uint8],
    epsilon: float | None = None,
) -> float:
    """Largest difference between torch and ONNX Runtime over all outputs and batch sizes; an error if too large.

    With ε the model is a perturbed graph, whose outputs for the clean image must be the same.
    """
    session = open_graph(model)
    largest = 0.0
    for batch in _batches(model):
        sample = images[np.arange(batch) % len(images)]
        normalised = normalise(torch.from_numpy(sample), torch.tensor(mean), torch.tensor(std))
        expected = NamedOutputs(network).eval()(normalised)
        found = run_graph(session, sample, batch, epsilon)
        for name, reference in zip(output_names(network), expected, strict=True):
            if found[name].shape != tuple(reference.shape):
                raise ExportError(
                    f"output {name} at batch {batch} has shape {found[name].shape}, "
                    f"torch gives {tuple(reference.shape)}."
                )
            scale = max(1.0, float(reference.abs().max()))
            largest = max(largest, float(np.abs(found[name] - reference.numpy()).max()) / scale)
    if not largest <= TOLERANCE:
        raise ExportError(f"the ONNX graph differs from torch by {largest:.2e}, expected at most {TOLERANCE:g}.")
    return largest


def check_perturbed_parity(
    perturbed: onnx.ModelProto,
    network: Classifier,
    mean: Sequence[float],
    std: Sequence[float],
    images: NDArray[np.uint8],
    epsilon: float = 0.002,
) -> float:
    """The same for a perturbed graph: its outputs for the clean image, and the preprocessed score."""
    largest = check_parity(perturbed, network, mean, std, images, epsilon)
    session = open_graph(perturbed)
    score = preprocessed_score(network)
    temperature = ODIN_TEMPERATURE if score == "odin" else None
    batches = _batches(perturbed)
    different = images[: max(batches)]
    normalised = normalise(torch.from_numpy(different), torch.tensor(mean), torch.tensor(std))
    # One image at a time: for its backward pass torch keeps every tensor of the forward pass.
    expected = np.concatenate(
        [score_images(score, by_autograd(network, one, epsilon), temperature) for one in torch.split(normalised, 1)]
    )
    for batch in batches:
        rows = np.arange(batch) % len(different)
        found = run_graph(session, different[rows], batch, epsilon)
        difference = sigmoid(score_images(score, found, temperature)) - sigmoid(expected[rows])
        largest = max(largest, float(np.abs(difference).max()))
    if not largest <= TOLERANCE:
        raise ExportError(f"the perturbed graph differs from torch by {largest:.2e}, expected at most {TOLERANCE:g}.")
    return largest


def _batches(model: onnx.ModelProto) -> list[int]:
    """The batch sizes that there is memory for, in ONNX Runtime and in torch: large images leave out the largest."""
    most = images_at_once(model, max(PARITY_BATCHES))
    return [batch for batch in PARITY_BATCHES if batch <= most]


def by_autograd(network: Classifier, x: torch.Tensor, epsilon: float) -> dict[str, NDArray[np.float32]]:
    """Input preprocessing by torch: the reference for the perturbed graph."""
    x = x.detach().clone().requires_grad_()
    logits, z = network(x)
    if z is None:
        target = torch.log_softmax(logits / ODIN_TEMPERATURE, dim=1).amax(dim=1)
        name = "logits_preprocessed"
    else:
        target = torch.nn.functional.logsigmoid(z.double())  # double: its gradient vanishes later than that of float
        name = "confidence_logit_preprocessed"
    (gradient,) = torch.autograd.grad(target.sum(), x)
    with torch.no_grad():
        perturbed = network(x + epsilon * gradient.sign())
    return {name: (perturbed.logits if z is None else perturbed.confidence_logit).numpy()}


def preprocessed_score(network: Classifier) -> ScoreName:
    """The score that a network's perturbed graph is made for."""
    return "odin" if network.branch is None else "confidence_preprocessed"
