"""The perturbed graph of a forward graph that has neighbours."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.training.graphs.head_graphs import CHANNELS, IMAGES, Head, classifier, gemm
from training.graphs.features import with_features
from training.graphs.gradient.cut import cut_at_direction
from training.graphs.neighbours import BANK, SIMILARITY, add_neighbours, neighbour_similarity, without_neighbours
from training.graphs.perturbed import perturbed_graph
from training.graphs.perturbed_images import perturbed_images_of
from training.graphs.run import open_graph, run_graph
from training.graphs.weights import share_weights

EPSILON = 0.01
K = 2


def gemm_and_branch(head: Head) -> None:
    gemm(head)
    weight = head.constant(np.random.default_rng(2).normal(size=(CHANNELS, 1)))
    head.op("Squeeze", head.op("Gemm", "pooled", weight), head.constant([1], np.int64), output="confidence_logit")


@pytest.fixture(scope="module", params=[True, False], ids=["branch", "plain"])
def forward(request) -> onnx.ModelProto:
    if not request.param:
        return classifier(gemm)
    model = classifier(gemm_and_branch)
    model.graph.output.append(helper.make_tensor_value_info("confidence_logit", TensorProto.FLOAT, ["N"]))
    return model


@pytest.fixture(scope="module")
def bank(forward) -> np.ndarray:
    return run_graph(open_graph(with_features(forward)), IMAGES[::-1])["features"][:6]


@pytest.fixture(scope="module")
def perturbed(forward, bank) -> onnx.ModelProto:
    return perturbed_graph(add_neighbours(forward, bank, K))


def test_the_similarity_is_that_of_the_clean_image(forward, bank, perturbed):
    """The perturbed graph returns the forward graph's similarity whatever ε is, and all else as without neighbours."""
    features = run_graph(open_graph(with_features(forward)), IMAGES)["features"]
    expected = neighbour_similarity(features, bank, K)
    plain = run_graph(open_graph(perturbed_graph(forward)), IMAGES, epsilon=EPSILON)
    for epsilon in (0.0, EPSILON):
        found = run_graph(open_graph(perturbed), IMAGES, epsilon=epsilon)
        np.testing.assert_allclose(found[SIMILARITY], expected, atol=1e-5)
    assert found.keys() == plain.keys() | {SIMILARITY}
    for name, rows in plain.items():
        np.testing.assert_allclose(found[name], rows, atol=1e-5)


def test_neighbours_are_neither_copied_nor_differentiated(forward, perturbed):
    """The perturbed graph has the neighbours' nodes once, and without them it is that of the plain forward graph."""
    assert sum(BANK in node.input for node in perturbed.graph.node) == 1
    own, plain = without_neighbours(perturbed), perturbed_graph(forward)
    assert [node.op_type for node in own.graph.node] == [node.op_type for node in plain.graph.node]
    assert [value.name for value in own.graph.output] == [value.name for value in plain.graph.output]


def test_the_cut_graph_has_no_neighbours(perturbed):
    """Neither part of a cut graph looks into the bank, and its answers are those of the whole."""
    wanted = tuple(value.name for value in perturbed.graph.output if value.name.endswith("_preprocessed"))
    cut = cut_at_direction(perturbed, wanted)
    assert cut is not None
    for part in (cut.direction_graph, cut.answer_graph):
        assert BANK not in {tensor.name for tensor in part.graph.initializer}
    parts = perturbed_images_of(perturbed)
    assert parts.direction_session is not None
    (found,) = parts.run(IMAGES, [EPSILON])
    whole = run_graph(open_graph(perturbed), IMAGES, epsilon=EPSILON)
    assert found.keys() == set(wanted)
    for name in wanted:
        np.testing.assert_allclose(found[name], whole[name], atol=1e-5)


def test_both_graphs_share_one_bank_beside_them(forward, bank, tmp_path: Path):
    """In the weights file of a bundle the bank is stored once, and a graph that refers to it can get another."""
    large = np.repeat(bank, 20, axis=0)  # large enough to be stored outside
    clean = add_neighbours(forward, large, K)
    moved = perturbed_graph(clean)
    expected = run_graph(open_graph(clean), IMAGES)[SIMILARITY]
    share_weights([clean, moved], tmp_path / "weights.bin")
    content = (tmp_path / "weights.bin").read_bytes()
    rows = large / np.linalg.norm(large.astype(float), axis=1, keepdims=True)
    assert content.count(np.ascontiguousarray(rows.T, np.float32).tobytes()) == 1
    for graph, epsilon in ((clean, None), (moved, EPSILON)):
        found = run_graph(open_graph(graph, weights_in=tmp_path), IMAGES, epsilon=epsilon)
        np.testing.assert_allclose(found[SIMILARITY], expected, atol=1e-5)
    renewed = add_neighbours(without_neighbours(clean), -large, 1)
    other = run_graph(open_graph(renewed, weights_in=tmp_path), IMAGES)[SIMILARITY]
    assert np.abs(other - expected).min() > 0.01
