"""The perturbed graph of a bundle: made from the forward graph, checked against torch autograd, and its ε chosen."""

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray

from service.gate import Floats, ScoreName, score_images, sigmoid
from training.augment import normalise
from training.errors import ExportError
from training.export import PARITY_BATCHES, TOLERANCE, check_parity, open_graph, run_graph
from training.gradient import add_input_preprocessing
from training.metrics import detection_error
from training.networks import Classifier

ODIN_TEMPERATURE = 1000.0  # Liang et al. (2018), and the paper's comparison with it
# In units of the normalised image, whose standard deviation is 1. Zero is in the grid: preprocessing may not help.
EPSILONS = (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016)
PROXY_IMAGES = 1_000


def perturbed_graph(forward: onnx.ModelProto) -> onnx.ModelProto:
    """The forward graph with input preprocessing: towards more confidence, or ODIN for a plain classifier."""
    return add_input_preprocessing(forward, temperature=ODIN_TEMPERATURE)


def preprocessed_score(network: Classifier) -> ScoreName:
    return "odin" if network.branch is None else "confidence_preprocessed"


def check_perturbed_parity(
    perturbed: onnx.ModelProto,
    network: Classifier,
    mean: Sequence[float],
    std: Sequence[float],
    images: NDArray[np.uint8],
    epsilon: float = 0.002,
) -> float:
    """Largest difference from torch over batch sizes and outputs: the clean ones and the preprocessed score."""
    largest = check_parity(perturbed, network, mean, std, images, epsilon)
    session = open_graph(perturbed)
    score = preprocessed_score(network)
    for batch in PARITY_BATCHES:
        sample = images[np.arange(batch) % len(images)]
        found = run_graph(session, sample, batch, epsilon)
        expected = by_autograd(
            network, normalise(torch.from_numpy(sample), torch.tensor(mean), torch.tensor(std)), epsilon
        )
        temperature = ODIN_TEMPERATURE if score == "odin" else None
        difference = sigmoid(score_images(score, found, temperature)) - sigmoid(
            score_images(score, expected, temperature)
        )
        largest = max(largest, float(np.abs(difference).max()))
    if not largest <= TOLERANCE:
        raise ExportError(f"the perturbed graph differs from torch by {largest:.2e}, expected at most {TOLERANCE:g}.")
    return largest


def by_autograd(network: Classifier, x: torch.Tensor, epsilon: float) -> dict[str, NDArray[np.float32]]:
    """Input preprocessing by torch: the reference that the ONNX graph must agree with."""
    x = x.detach().clone().requires_grad_()
    logits, z = network(x)
    if z is None:
        target = torch.log_softmax(logits / ODIN_TEMPERATURE, dim=1).amax(dim=1)
        name = "logits_preprocessed"
    else:
        target = torch.nn.functional.logsigmoid(z.double())  # double: its gradient vanishes later
        name = "confidence_logit_preprocessed"
    (gradient,) = torch.autograd.grad(target.sum(), x)
    with torch.no_grad():
        moved = network(x + epsilon * gradient.sign())
    return {name: (moved.logits if z is None else moved.confidence_logit).numpy()}


def choose_epsilon(
    session: onnxruntime.InferenceSession, score: ScoreName, images: NDArray[np.uint8], right: NDArray[np.bool_]
) -> float:
    """The ε of least detection error between right and wrong answers: no out-of-distribution image is needed.

    Looked for on all wrongly and as many of the rightly classified images as make PROXY_IMAGES; of equally good
    values the smallest is taken.
    """
    wrong = np.flatnonzero(~right)[: PROXY_IMAGES // 2]
    chosen = np.concatenate([np.flatnonzero(right)[: PROXY_IMAGES - len(wrong)], wrong])
    errors = [_proxy_error(session, score, images[chosen], right[chosen], epsilon) for epsilon in EPSILONS]
    return EPSILONS[int(np.argmin(errors))]


def choose_epsilon_outside(
    session: onnxruntime.InferenceSession,
    score: ScoreName,
    images: NDArray[np.uint8],
    outside: Sequence[NDArray[np.uint8]],
) -> float:
    """The ε of least detection error between in-distribution images and held-out images of other sets, as the paper.

    Looked for on the first PROXY_IMAGES of `images` and all of `outside`; of equally good values the smallest is taken.
    """
    errors = []
    parts = (images[:PROXY_IMAGES], *outside)  # outside the loop: images of a folder are decoded here
    for epsilon in EPSILONS:
        inside, *others = (
            score_images(score, run_graph(session, part, epsilon=epsilon), ODIN_TEMPERATURE) for part in parts
        )
        errors.append(detection_error(inside, np.concatenate(others)).detection_error)
    return EPSILONS[int(np.argmin(errors))]


def _proxy_error(
    session: onnxruntime.InferenceSession,
    score: ScoreName,
    images: NDArray[np.uint8],
    right: NDArray[np.bool_],
    epsilon: float,
) -> float:
    values: Floats = score_images(score, run_graph(session, images, epsilon=epsilon), ODIN_TEMPERATURE)
    return detection_error(values[right], values[~right]).detection_error
