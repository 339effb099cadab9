"""The perturbed graph of a bundle: made from the forward graph, checked against torch autograd, and its ε chosen."""

from collections.abc import Sequence

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from service.model.scores import Floats, ScoreName, score_images, sigmoid
from training.data.normalise import normalise
from training.errors import ExportError
from training.graphs.from_torch import PARITY_BATCHES, PERTURBED_BATCH, TOLERANCE, check_parity, open_graph, run_graph
from training.graphs.gradient import add_input_preprocessing
from training.graphs.perturbed_images import MovedImages
from training.graphs.progress import images_done
from training.metrics.detection import detection_error
from training.networks import Classifier

ODIN_TEMPERATURE = 1000.0  # Liang et al. (2018), and the paper's comparison with it
# In units of the normalised image, whose standard deviation is 1. Zero is in the grid: preprocessing may not help.
EPSILONS = (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016)
# Of the model's own images, at most. Neighbouring ε differ by a tenth of a point of detection error: with 1,000 images,
# each of them a twentieth, chance would choose.
EPSILON_IMAGES = 5_000


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
    perturbed: MovedImages, score: ScoreName, images: NDArray[np.uint8], right: NDArray[np.bool_]
) -> float:
    """The ε of least detection error between right and wrong answers: no out-of-distribution image is needed.

    Looked for on at most EPSILON_IMAGES, of which no more than half may be wrongly classified; of equally good values
    the smallest is taken.
    """
    wrong = np.flatnonzero(~right)[: EPSILON_IMAGES // 2]
    chosen = np.concatenate([np.flatnonzero(right)[: EPSILON_IMAGES - len(wrong)], wrong])
    found = _at_each_epsilon(perturbed, score, images[chosen])
    return _least_error([values[right[chosen]] for values in found], [values[~right[chosen]] for values in found])


def choose_epsilon_outside(
    perturbed: MovedImages, score: ScoreName, images: NDArray[np.uint8], outside: Sequence[NDArray[np.uint8]]
) -> float:
    """The ε of least detection error between in-distribution images and held-out images of other sets, as the paper.

    Looked for on the first EPSILON_IMAGES of `images` and all of `outside`; of equally good values the smallest is
    taken.
    """
    others = [_at_each_epsilon(perturbed, score, part) for part in outside]
    return _least_error(
        _at_each_epsilon(perturbed, score, images[:EPSILON_IMAGES]),
        [np.concatenate(of_epsilon) for of_epsilon in zip(*others, strict=True)],
    )


def _at_each_epsilon(perturbed: MovedImages, score: ScoreName, images: NDArray[np.uint8]) -> list[Floats]:
    """The preprocessed score of every image, once for each ε of the grid."""
    parts = []
    for start in range(0, len(images), PERTURBED_BATCH):
        batch = images[start : start + PERTURBED_BATCH]
        parts.append([score_images(score, outputs, ODIN_TEMPERATURE) for outputs in perturbed.run(batch, EPSILONS)])
        images_done(len(batch))
    return [np.concatenate(of_epsilon) for of_epsilon in zip(*parts, strict=True)]


def _least_error(inside: Sequence[Floats], outside: Sequence[Floats]) -> float:
    errors = [detection_error(own, other).detection_error for own, other in zip(inside, outside, strict=True)]
    return EPSILONS[int(np.argmin(errors))]
