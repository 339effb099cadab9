"""The neighbours score inside a graph, against numpy; and the bank it looks into."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.training.graphs import head_graphs
from tests.training.graphs.head_graphs import CHANNELS, HEADS, IMAGES, classifier
from training.errors import ExportError
from training.graphs.features import with_features
from training.graphs.neighbours import (
    BANK,
    SIMILARITY,
    add_neighbours,
    centres_of,
    choose_bank,
    has_neighbours,
    neighbour_similarity,
    without_neighbours,
)
from training.graphs.run import open_graph, run_graph

ROWS = np.random.default_rng(5).normal(size=(20, CHANNELS)).astype(np.float32)


def features_of(model: onnx.ModelProto) -> np.ndarray:
    return run_graph(open_graph(with_features(model)), IMAGES)["features"]


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("head", HEADS)
def test_the_graph_computes_what_numpy_does(head, k):
    """The output is the k-th largest cosine similarity to the bank, at every batch size, and logits stay the same."""
    plain = classifier(head)
    scored = add_neighbours(plain, ROWS, k)
    onnx.checker.check_model(scored, full_check=True)
    expected = neighbour_similarity(features_of(plain), ROWS, k)
    logits = run_graph(open_graph(plain), IMAGES)["logits"]
    for batch in (1, 4, 9):
        found = run_graph(open_graph(scored), IMAGES, batch)
        assert found[SIMILARITY].shape == (len(IMAGES),)
        assert found[SIMILARITY].dtype == np.float32
        np.testing.assert_allclose(found[SIMILARITY], expected, atol=1e-5)
        np.testing.assert_allclose(found["logits"], logits, atol=1e-5)


def test_similarities_worked_out_by_hand():
    """Cosines of 45 degrees, 0 and 90; the length of a vector does not matter."""
    bank = np.array([[1, 0], [0, 5], [-2, 0]], np.float32)
    vectors = np.array([[3, 3], [0.1, 0], [0, 0]], np.float32)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(neighbour_similarity(vectors, bank, 1), [half, 1, 0], atol=1e-7)
    np.testing.assert_allclose(neighbour_similarity(vectors, bank, 2), [half, 0, 0], atol=1e-7)
    np.testing.assert_allclose(neighbour_similarity(vectors, bank, 3), [-half, -1, 0], atol=1e-7)


def test_an_image_in_the_bank_is_not_its_own_neighbour():
    """Leaving out an image's own row equals a bank without that row; -1 leaves out none."""
    features = ROWS[:5]
    own = np.array([0, 1, -1, 3, 4])
    for k in (1, 4):
        found = neighbour_similarity(features, ROWS, k, own)
        for i, row in enumerate(own):
            rest = ROWS if row < 0 else np.delete(ROWS, row, axis=0)
            assert found[i] == pytest.approx(neighbour_similarity(features[i : i + 1], rest, k)[0])
    with pytest.raises(ExportError, match="at least 6"):
        neighbour_similarity(features, features, 5, own)


@pytest.mark.parametrize("k", [1, 2])
def test_a_zero_vector_is_similar_to_nothing(k):
    """An image without any activation, and a bank row of zeros, give 0 and not NaN."""
    model = classifier(head_graphs.gemm)
    (kernel,) = (tensor for tensor in model.graph.initializer if len(tensor.dims) == 4 and tensor.dims[2] == 3)
    kernel.CopyFrom(numpy_helper.from_array(np.zeros(kernel.dims, np.float32), kernel.name))
    found = run_graph(open_graph(add_neighbours(model, np.vstack([ROWS, 0 * ROWS]), k)), IMAGES)[SIMILARITY]
    np.testing.assert_array_equal(found, np.zeros(len(IMAGES)))


@pytest.mark.parametrize("head", HEADS)
def test_removing_gives_the_graph_as_it_was(head):
    """Without neighbours a graph is byte for byte what it was, and can get another bank."""
    plain = classifier(head)
    before = plain.SerializeToString(deterministic=True)
    scored = add_neighbours(plain, ROWS, 2)
    assert plain.SerializeToString(deterministic=True) == before
    assert has_neighbours(scored)
    assert not has_neighbours(plain)
    removed = without_neighbours(scored)
    assert removed.SerializeToString(deterministic=True) == before
    assert without_neighbours(plain).SerializeToString(deterministic=True) == before
    again = run_graph(open_graph(add_neighbours(removed, ROWS[:7], 1)), IMAGES)[SIMILARITY]
    np.testing.assert_allclose(again, neighbour_similarity(features_of(plain), ROWS[:7], 1), atol=1e-5)


def test_what_another_output_needs_is_not_removed():
    """An output that reads a tensor of the neighbours, even inside a branch, keeps the nodes it needs."""
    scored = add_neighbours(classifier(head_graphs.gemm), ROWS, 2)
    shown = helper.make_tensor_value_info("shown", TensorProto.FLOAT, None)
    body = helper.make_graph(
        [helper.make_node("Identity", ["neighbours/similarities"], ["shown"])], "body", [], [shown]
    )
    scored.graph.initializer.append(numpy_helper.from_array(np.asarray(True), "always"))
    scored.graph.node.append(helper.make_node("If", ["always"], ["all"], then_branch=body, else_branch=body))
    scored.graph.output.append(helper.make_tensor_value_info("all", TensorProto.FLOAT, ["N", len(ROWS)]))
    removed = without_neighbours(scored)
    assert BANK in {tensor.name for tensor in removed.graph.initializer}
    assert not {"TopK", "Gather"} & {node.op_type for node in removed.graph.node}
    np.testing.assert_array_equal(
        run_graph(open_graph(removed), IMAGES)["all"], run_graph(open_graph(scored), IMAGES)["all"]
    )


@pytest.mark.parametrize(
    ("bank", "k", "why"),
    [
        (ROWS[:, :4], 1, r"expected \[M,6\]"),
        (ROWS[0], 1, r"expected \[M,6\]"),
        (ROWS[:3], 4, "3 rows, expected at least 4"),
        (ROWS, 0, "k is 0"),
        (np.full_like(ROWS, np.nan), 1, "NaN"),
    ],
)
def test_a_bank_that_does_not_fit_is_refused(bank, k, why):
    """The error says what is wrong with the bank and what was expected."""
    with pytest.raises(ExportError, match=why):
        add_neighbours(classifier(head_graphs.gemm), bank, k)


def test_a_second_bank_is_refused():
    """Neighbours are not added to a graph that has them."""
    with pytest.raises(ExportError, match="without_neighbours"):
        add_neighbours(add_neighbours(classifier(head_graphs.gemm), ROWS, 1), ROWS, 1)


@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=12), size=st.integers(1, 200), seed=st.integers(0, 5))
def test_the_bank_holds_every_class_in_fair_parts(counts, size, seed):
    """The bank has the asked size, no row twice, and as many rows of each class unless a class has too few."""
    labels = np.random.default_rng(seed).permutation(np.repeat(3 * np.arange(len(counts)), counts))
    features = np.zeros((len(labels), 2), np.float32)
    chosen = choose_bank(features, labels, size, seed)
    np.testing.assert_array_equal(chosen, choose_bank(features, labels, size, seed))
    assert len(chosen) == len(np.unique(chosen)) == min(max(size, len(counts)), len(labels))
    taken = np.array([np.count_nonzero(labels[chosen] == 3 * index) for index in range(len(counts))])
    assert taken.min() >= 1
    short = taken == np.array(counts)  # gave all it has
    if not short.all():
        assert np.ptp(taken[~short]) <= 1
        assert taken.max() <= taken[~short].min() + 1


def test_centres_are_the_middles_of_groups():
    """Rows of four tight groups: whichever four start, one of each, the centres are the groups' mean directions."""
    random = np.random.default_rng(0)
    middles = np.eye(4, 6)
    groups = [middle + random.normal(0, 0.02, (25, 6)) for middle in middles]
    rows = (np.concatenate(groups) * random.uniform(0.1, 9, (100, 1))).astype(np.float32)  # lengths do not count
    centres = centres_of(rows, np.array([3, 30, 60, 90]))
    for centre, group in zip(centres, np.split(rows, 4), strict=True):
        mean = (group / np.linalg.norm(group, axis=1, keepdims=True)).mean(axis=0)
        np.testing.assert_allclose(centre, mean / np.linalg.norm(mean), atol=1e-5)


def test_centres_speak_for_all_rows():
    """On average rows are more similar to their nearest centre than to the nearest row that was drawn, of as many."""
    random = np.random.default_rng(1)
    rows = random.normal(size=(600, 8)).astype(np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    chosen, others = np.arange(40), np.arange(40, 600)
    centres = centres_of(rows, chosen)
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1, atol=1e-5)
    assert (unit[others] @ centres.T).max(axis=1).mean() > (unit[others] @ unit[chosen].T).max(axis=1).mean() + 0.02


def test_of_few_rows_each_is_its_own_centre():
    """Where all rows are chosen, or several are equal, the bank holds them as they are, with length 1."""
    rows = np.array([[2, 0], [0, 3], [0, 3]], np.float32)
    np.testing.assert_array_equal(centres_of(rows, np.arange(3)), [[1, 0], [0, 1], [0, 1]])
    np.testing.assert_array_equal(centres_of(np.repeat(rows, 2, axis=0), np.array([0, 2, 4])), [[1, 0], [0, 1], [0, 1]])


def test_a_bank_without_labels_is_drawn_from_all_rows():
    """Without labels the rows are drawn at random, and the seed decides which."""
    features = np.zeros((100, 2), np.float32)
    chosen = choose_bank(features, None, 10)
    assert len(np.unique(chosen)) == 10
    assert set(chosen) != set(choose_bank(features, None, 10, seed=1))
    np.testing.assert_array_equal(choose_bank(features, None, 500), np.arange(100))


@pytest.mark.parametrize(("n", "labels", "size"), [(0, [], 5), (3, [0, 1], 5), (3, [0, 1, 1], 0)])
def test_a_bank_of_nothing_is_refused(n, labels, size):
    """No images, labels for other images, or a size of zero are errors."""
    with pytest.raises(ExportError, match="cannot be chosen"):
        choose_bank(np.zeros((n, 2), np.float32), np.array(labels, np.int64), size)
