"""Input preprocessing of whole networks, against torch autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession
from torch import Tensor, nn

from tests.training.graphs.gradient_reference import autograd, export, input_gradient, open_graph, run
from training.data.normalise import normalise
from training.graphs.from_torch import export_network
from training.graphs.gradient import add_input_preprocessing
from training.graphs.image_input import with_image_input
from training.graphs.torch_layers import shown_layers
from training.networks import Classifier, add_confidence_branch, build_network, compact
from training.networks.densenet import densenet_bc
from training.networks.vgg import vgg13
from training.networks.wideresnet import wide_resnet

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
EPSILON = 0.01
SIZE = 32
NETWORKS: dict[str, Callable[[], Classifier]] = {
    "compact": lambda: compact(10, SIZE, (16, 32, 32)),
    "vgg13": lambda: vgg13(10, SIZE, (8, 16, 16, 32, 32)),
    "wide-resnet": lambda: wide_resnet(10, 2, 10, SIZE),
    "densenet-bc": lambda: densenet_bc(10, SIZE, depth=16, growth=8),
    "mlp": lambda: build_network("mlp", 10, SIZE),
    "efficientnet-lite0": lambda: build_network("efficientnet-lite0", 10, SIZE),
    "resnet18": lambda: build_network("torchvision:resnet18", 10, SIZE),
    "mobilenet-v3-small": lambda: build_network("torchvision:mobilenet_v3_small", 10, SIZE),
    # torch's newer exporter, which the product uses, takes seconds where the older one takes milliseconds.
    "compact, newer exporter": lambda: compact(10, SIZE, (8, 8, 8)),
    "densenet-bc, newer exporter": lambda: densenet_bc(10, SIZE, depth=10, growth=4),
    "compact, branch reads layers, newer exporter": lambda: compact(10, SIZE, (8, 8, 8)),
}


class Outputs(nn.Module):
    def __init__(self, network: Classifier) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.network(x))


class Score(nn.Module):
    def __init__(self, network: Classifier) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).confidence_logit


@dataclass(frozen=True)
class Pair:
    """One network twice: in torch, and as the graphs made from it."""

    score: Score
    preprocessed: InferenceSession
    gradient: InferenceSession


def noise_images(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE, SIZE, 3), dtype=np.uint8)


def flat_images(count: int, seed: int) -> np.ndarray:
    """One colour each, or one colour per half: every max pool inside sees equal values."""
    colours = np.random.default_rng(seed).integers(0, 256, (2, count, 1, 1, 3), dtype=np.uint8)
    images = np.broadcast_to(colours[0], (count, SIZE, SIZE, 3)).copy()
    images[1::2, :, SIZE // 2 :] = colours[1, 1::2]
    return images


def normalised(images: np.ndarray) -> Tensor:
    return normalise(torch.from_numpy(images), torch.tensor(MEAN), torch.tensor(STD))


def settle_batch_norms(network: Classifier) -> None:
    """Without statistics of real activations, a deep network with fresh weights answers the same to every image."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    with torch.no_grad():
        network.train()(normalised(noise_images(64, seed=1)))
    network.eval()


@pytest.fixture(scope="module", params=NETWORKS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on images this small, threads mostly wait for each other
    torch.manual_seed(0)
    reads_layers = "reads layers" in request.param
    network = NETWORKS[request.param]()
    add_confidence_branch(network, (16,), layers=shown_layers(network, SIZE) if reads_layers else ())
    settle_batch_norms(network)
    if "newer exporter" in request.param:
        forward = export_network(network, MEAN, STD, SIZE)
    else:
        graph = export(Outputs(network), torch.zeros(2, 3, SIZE, SIZE), ["logits", "confidence_logit"])
        forward = with_image_input(graph, MEAN, STD)
    yield Pair(Score(network), open_graph(add_input_preprocessing(forward)), open_graph(input_gradient(forward)))
    torch.set_num_threads(threads)


class Compared(NamedTuple):
    """Per image. Differences are of the preprocessed logit."""

    from_autograd: np.ndarray  # |c̃ − c̃ of torch|
    from_same_step: np.ndarray  # |c̃ − torch's, for the image perturbed by the graph's own signs|
    other_signs: np.ndarray  # the share of signs that differ


def compare(pair: Pair, images: np.ndarray, dtype: torch.dtype) -> Compared:
    """The graph beside torch; `dtype` is what torch computes in."""
    x = normalised(images).to(dtype)
    score = pair.score.to(dtype)
    direction = autograd(score, x).sign()
    signs = np.sign(run(pair.gradient, image=images)["gradient"])
    with torch.no_grad():
        clean, expected = score(x).numpy(), score(x + EPSILON * direction).numpy()
        same_step = score(x + EPSILON * torch.from_numpy(signs).to(dtype)).numpy()
    pair.score.float()
    found = run(pair.preprocessed, image=images, epsilon=np.array(EPSILON, np.float32))
    np.testing.assert_allclose(found["confidence_logit"], clean, rtol=1e-4, atol=1e-4)
    # The preprocessing changes the score by far more than the tolerance, else agreement would mean little.
    assert np.abs(expected - clean).max() > 1e-3
    preprocessed = found["confidence_logit_preprocessed"]
    other_signs = (signs != direction.numpy()).reshape(len(images), -1).mean(1)
    return Compared(np.abs(preprocessed - expected), np.abs(preprocessed - same_step), other_signs)


@pytest.mark.parametrize("batch", [1, 16])
def test_preprocessed_confidence_equals_autograds(pair: Pair, batch: int) -> None:
    """At both batch sizes, on different images, c̃ is that of torch in float64, and fewer than 0.1 % of signs differ."""
    compared = compare(pair, noise_images(batch, seed=100 + batch), torch.float64)
    assert compared.from_same_step.max() <= 1e-4
    assert compared.other_signs.mean() < 1e-3
    # Where two values that a max pool or ReLU compares are equal but for rounding, float32 may take the other one, and
    # with it other signs for some pixels of that image: how often depends on the CPU. All other images agree.
    assert (compared.from_autograd[compared.other_signs == 0] <= 1e-4).all()
    assert np.median(compared.from_autograd) <= 1e-4


def test_ties_of_flat_images_are_broken_as_in_torch(pair: Pair) -> None:
    """On images of one colour most max pools see equal values, and the first of them gets the gradient."""
    # Not on every image: where rounding sets equal values apart, the last bit decides, in torch as well as here: on
    # flat images, torch in float64 and torch in float32 disagree with each other too. Hence medians.
    compared = compare(pair, flat_images(16, seed=3), torch.float32)
    assert np.median(compared.from_autograd) <= 1e-4
    assert np.median(compared.other_signs) < 1e-3
    assert compared.other_signs.mean() < 1e-2
