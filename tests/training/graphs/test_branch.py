"""A branch in the graph answers as its reference in numpy and as torch, and its gradient is torch autograd's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
import torch

from tests.training.graphs.branch_autograd import assert_preprocessed_equals_autograds
from tests.training.graphs.branch_reference import KINDS, Torch, forward_graph, noise, normalised
from training.graphs.layers import with_branch_input
from training.graphs.run import open_graph, run_graph

NEWER = ("compact", "vit")  # torch's newer exporter takes seconds
CASES = [*((kind, False) for kind in KINDS), *((kind, True) for kind in NEWER)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}, {'newer' if case[1] else 'older'} exporter")
def exported(request: pytest.FixtureRequest) -> Iterator[tuple[Torch, onnx.ModelProto]]:
    kind, dynamo = request.param
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on images this small, threads mostly wait for each other
    network = Torch(KINDS[kind])
    yield network, forward_graph(network, dynamo=dynamo)
    torch.set_num_threads(threads)


def test_the_branch_reads_what_torch_reads(exported: tuple[Torch, onnx.ModelProto]) -> None:
    """In one run: the logits as they were, and features and channel means as hooks on torch's modules see them."""
    network, forward = exported
    network.float()
    shown, widths = with_branch_input(forward)
    images = noise(5, seed=2)
    found = run_graph(open_graph(shown), images, batch=3)
    with torch.no_grad():
        expected = network.read(normalised(images)).numpy()
    assert found["branch_input"].shape == (5, sum(widths))
    np.testing.assert_allclose(found["branch_input"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["logits"], run_graph(open_graph(forward), images)["logits"], atol=1e-5)


def test_preprocessed_confidence_equals_autograds(exported: tuple[Torch, onnx.ModelProto]) -> None:
    """With neighbours beside the branch, c̃ is that of torch in float64, and fewer than 0.1 % of signs differ."""
    assert_preprocessed_equals_autograds(*exported)
