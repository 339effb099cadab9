"""The gradient inside the shipped graphs, against torch with the same trained weights."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from PIL import Image
from torch import nn

from tests.training.graphs.gradient_reference import input_gradient
from training.graphs.run import open_graph, run_graph
from training.graphs.torch_layers import shown_layers
from training.networks import add_confidence_branch, compact

ROOT = Path(__file__).parents[3]
# The hidden layers of each version's branch, their activation, and whether it reads all layers.
BRANCHES = {1: ((128,), "relu", False), 5: ((512, 256, 128), "gelu", True)}
EPSILON = 0.002
COUNT = 16


@pytest.fixture(scope="module", params=BRANCHES, ids="version {}".format)
def version(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def bundle(version) -> Path:
    return ROOT / "models" / "cifar10" / str(version)


@pytest.fixture(scope="module")
def forward(bundle) -> onnx.ModelProto:
    return onnx.load(bundle / "model.onnx")


@pytest.fixture(scope="module")
def network(forward, version) -> nn.Module:
    """The compact network with the graph's weights; where the exporter folded a batch norm away, so does this."""
    prefix = "network."
    weights = {
        t.name.removeprefix(prefix): torch.from_numpy(numpy_helper.to_array(t).copy())
        for t in forward.graph.initializer
        if t.name.startswith(prefix)
    }
    net = compact(10, 32)
    hidden, activation, reads_layers = BRANCHES[version]
    add_confidence_branch(net, hidden, activation, shown_layers(net, 32) if reads_layers else ())
    for place in (6, 13, 20):
        bias = weights[f"body.{place}.bias"] = weights.pop(f"body.{place}.weight_bias")
        net.body[place].bias = nn.Parameter(bias)
        net.body[place + 1] = nn.Identity()
    missing, unexpected = net.load_state_dict(weights, strict=False)
    # A scale of one that two batch norms share is stored once, and torch's step counters are not part of the graph.
    assert all(name.endswith("num_batches_tracked") or name == "body.18.weight" for name in missing)
    assert not unexpected
    return net.eval()


def pictures(kind: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    if kind == "noise":
        return rng.integers(0, 256, (COUNT, 32, 32, 3), dtype=np.uint8)
    if kind == "flat":  # every max pool meets ties only
        colours = rng.integers(0, 256, (COUNT, 1, 1, 3), dtype=np.uint8)
        return np.broadcast_to(colours, (COUNT, 32, 32, 3)).copy()
    sheet = np.asarray(Image.open(ROOT / "tests" / "fixtures" / "cifar10.png").convert("RGB"))
    return sheet[:32, : COUNT * 32].reshape(32, COUNT, 32, 3).swapaxes(0, 1).copy()


@pytest.mark.parametrize("kind", ["photos", "noise", "flat"])
def test_sign_and_confidence_are_torchs_at_batch_1_and_16(bundle, forward, network, kind):
    """Under 0.1 % of the gradient's signs differ from torch's, and the preprocessed confidence by at most 1e-4."""
    images = pictures(kind)
    normalised = run_graph(_with_output(forward, "normalised"), images, COUNT)["normalised"]
    # In one batch of 16: on flat images torch's own signs at batch 1 differ from these by 0.7 %, ours do not.
    x = torch.from_numpy(normalised).requires_grad_()
    (expected,) = torch.autograd.grad(network(x).confidence_logit.sum(), x)
    with torch.no_grad():
        confidence = torch.sigmoid(network(x + EPSILON * expected.sign()).confidence_logit).numpy()
    gradient, perturbed = open_graph(input_gradient(forward)), open_graph(bundle / "perturbed.onnx")
    for batch in (1, COUNT):
        found = run_graph(gradient, images, batch)["gradient"]
        assert np.mean(np.sign(found) != np.sign(expected.numpy())) < 1e-3
        z = run_graph(perturbed, images, batch, EPSILON)["confidence_logit_preprocessed"]
        np.testing.assert_allclose(1 / (1 + np.exp(-z.astype(float))), confidence, atol=1e-4)


def _with_output(model: onnx.ModelProto, name: str):
    """A session that also shows an inner tensor."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    shown.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return open_graph(shown)
