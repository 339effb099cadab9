"""Holds the preprocessed confidence of a graph with a branch to torch autograd."""

from __future__ import annotations

import numpy as np
import onnx
import torch

from tests.training.graphs.branch_reference import ConfidenceLogit, Torch, noise, normalised, random_branch
from tests.training.graphs.gradient_reference import autograd, input_gradient
from training.graphs.branch import add_branch
from training.graphs.layers import with_branch_input
from training.graphs.neighbours import add_neighbours
from training.graphs.perturbed import perturbed_or_note
from training.graphs.run import open_graph, run_graph

EPSILON = 0.01


def assert_preprocessed_equals_autograds(network: Torch, forward: onnx.ModelProto) -> None:
    """For a branch with random weights, and neighbours beside it."""
    shown, widths = with_branch_input(forward)
    known = run_graph(open_graph(shown), noise(16, seed=3))["branch_input"]
    branch = random_branch(known, activation="gelu")
    scored = add_branch(add_neighbours(forward, known[:, : widths[0]], 2), branch)
    made = perturbed_or_note(scored)
    assert made.graph is not None, made.note
    images = noise(4, seed=4)
    x = normalised(images).double()
    score = ConfidenceLogit(network, branch, len(widths) - 1)
    direction = autograd(score, x).sign()
    signs = np.sign(open_graph(input_gradient(scored)).run(["gradient"], {"image": images})[0])
    with torch.no_grad():
        clean, expected = score(x).numpy(), score(x + EPSILON * direction).numpy()
        same_step = score(x + EPSILON * torch.from_numpy(signs)).numpy()
    found = run_graph(open_graph(made.graph), images, epsilon=EPSILON)
    np.testing.assert_allclose(found["confidence_logit"], clean, rtol=1e-4, atol=1e-4)
    assert np.abs(expected - clean).max() > 1e-2  # else the agreement would mean little
    preprocessed = found["confidence_logit_preprocessed"]
    np.testing.assert_allclose(preprocessed, same_step, rtol=1e-4, atol=1e-4)
    # Where values are equal but for rounding, float32 may take another sign for some pixels of that image.
    other_signs = (signs != direction.numpy()).reshape(len(images), -1).mean(1)
    assert other_signs.mean() < 1e-3
    np.testing.assert_allclose(preprocessed[other_signs == 0], expected[other_signs == 0], rtol=1e-4, atol=1e-4)
    assert np.median(np.abs(preprocessed - expected)) <= 1e-4
