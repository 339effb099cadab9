"""The layers of a graph are found from its structure, their number is bounded, and a branch can be taken away again."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.training.graphs import head_graphs
from tests.training.graphs.branch_reference import random_branch
from tests.training.graphs.head_graphs import CHANNELS, IMAGES, SIZE, WEIGHT, Head, classifier
from training.errors import ExportError
from training.graphs.branch import Branch, add_branch, has_branch, without_branch
from training.graphs.layers import find_layers, with_branch_input
from training.graphs.neighbours import add_neighbours, without_neighbours
from training.graphs.run import open_graph, run_graph
from training.graphs.weights import LARGE, load_without_large_weights, share_weights, weights_folder

SHIPPED = Path(__file__).parents[3] / "models" / "cifar10" / "5" / "model.onnx"
KERNEL = np.random.default_rng(5).normal(size=(CHANNELS, CHANNELS, 3, 3)) / 6


def convolved(head: Head, x: str, dtype: type[np.generic] = np.float32) -> str:
    return head.op("Conv", x, head.constant(KERNEL, dtype), pads=[1, 1, 1, 1])


def flattened(head: Head, x: str, dtype: type[np.generic] = np.float32) -> None:
    """A maximum, so that the last layer's means are not the features."""
    pooled = head.op("Flatten", head.op("GlobalMaxPool", x))
    head.op("MatMul", pooled, head.constant(WEIGHT, dtype), output="logits")


def silu(head: Head) -> None:
    x = convolved(head, "map")
    flattened(head, head.op("Mul", x, head.op("Sigmoid", x), output="activated"))


def hard_swish(head: Head) -> None:
    """As older exporters write it: x·clip(x + 3, 0, 6)/6."""
    x = convolved(head, "map")
    clipped = head.op("Clip", head.op("Add", x, head.constant(3.0)), head.constant(0.0), head.constant(6.0))
    flattened(head, head.op("Div", head.op("Mul", x, clipped), head.constant(6.0), output="activated"))


def gelu(head: Head) -> None:
    x = convolved(head, "map")
    inner = head.op("Add", head.op("Erf", head.op("Div", x, head.constant(2**0.5))), head.constant(1.0))
    flattened(head, head.op("Mul", head.op("Mul", x, inner), head.constant(0.5), output="activated"))


def relu6_after_the_sum(head: Head) -> None:
    inner = head.op("Relu", convolved(head, "map"))
    added = head.op("Add", convolved(head, inner), "map")
    flattened(head, head.op("Clip", added, head.constant(0.0), head.constant(6.0), output="activated"))


def sum_without_activation(head: Head) -> None:
    inner = head.op("Relu", convolved(head, "map"))
    flattened(head, head.op("Add", convolved(head, inner), "map", output="activated"))


def quantised(head: Head) -> None:
    """A ReLU that is left to the quantisation: its zero point is the lowest value."""
    scale, zero = head.constant(0.02), head.constant(0, np.uint8)
    stored = head.op("QuantizeLinear", convolved(head, "map"), scale, zero)
    flattened(head, head.op("DequantizeLinear", stored, scale, zero, output="activated"))


@pytest.mark.parametrize("tail", [silu, hard_swish, gelu, relu6_after_the_sum, sum_without_activation, quantised])
def test_an_activation_is_one_layer_however_it_is_written(tail):
    """The result of the whole activation is read, after the sum in a residual block, and dequantised."""
    model = classifier(tail)
    shown, widths = with_branch_input(model)
    onnx.checker.check_model(shown, full_check=True)
    assert [layer.name for layer in find_layers(model)][-1] == "activated"
    assert widths == [CHANNELS] * 3  # features, the first ReLU, and this one
    shown.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in ("map", "activated"))
    found = run_graph(open_graph(shown), IMAGES)
    for place, name in ((1, "map"), (2, "activated")):
        expected = found[name].astype(np.float64).mean(axis=(2, 3))
        read = found["branch_input"][:, place * CHANNELS : (place + 1) * CHANNELS]
        np.testing.assert_allclose(read, expected, atol=1e-5)


def test_means_that_are_the_features_are_not_read_twice():
    """A head that averages the last activation leaves no further layer."""
    assert find_layers(classifier(head_graphs.gemm)) == []
    assert with_branch_input(classifier(head_graphs.gemm))[1] == [CHANNELS]


def test_channels_last_and_half_precision():
    """Maps [N,H,W,C] and tokens are averaged over their positions, and float16 becomes float32."""

    def tokens(head: Head) -> None:
        rows = head.op("Transpose", "map", perm=[0, 2, 3, 1])
        weight = head.constant(np.eye(CHANNELS)[::-1], np.float16)
        added = head.op("Add", head.op("MatMul", rows, weight), rows, output="grid")
        flat = head.op("Reshape", added, head.constant([0, SIZE * SIZE, CHANNELS], np.int64))
        head.op("Add", head.op("Relu", head.op("MatMul", flat, weight)), flat, output="tokens")
        first = head.op("Gather", "tokens", head.constant(0, np.int64), axis=1)
        head.op("Cast", head.op("MatMul", first, head.constant(WEIGHT, np.float16)), output="logits", to=1)

    model = classifier(tokens, TensorProto.FLOAT16)
    assert [(layer.name, layer.channels_last) for layer in find_layers(model)][1:] == [("grid", True), ("tokens", True)]
    shown, widths = with_branch_input(model)
    assert widths == [CHANNELS] * 4
    shown.graph.output.extend(onnx.helper.make_tensor_value_info(name, 10, None) for name in ("grid", "tokens"))
    found = run_graph(open_graph(shown), IMAGES)
    assert found["branch_input"].dtype == np.float32
    for place, name in ((2, "grid"), (3, "tokens")):
        expected = found[name].astype(np.float64).reshape(len(IMAGES), -1, CHANNELS).mean(axis=1)
        read = found["branch_input"][:, place * CHANNELS : (place + 1) * CHANNELS]
        np.testing.assert_allclose(read, expected, rtol=1e-3)  # the map is rounded to float16


def test_many_layers_are_thinned_evenly():
    """At most so many layers and channels, evenly over the depth, and the deepest always."""

    def deep(head: Head) -> None:
        x = "map"
        for depth in range(20):
            x = head.op("Relu", convolved(head, x), output=f"layer {depth}")
        flattened(head, x)

    model = classifier(deep)
    names = ["map", *(f"layer {depth}" for depth in range(20))]
    assert [layer.name for layer in find_layers(model, most_layers=99)] == names
    assert [layer.name for layer in find_layers(model, most_layers=5)] == names[::5]
    assert [layer.name for layer in find_layers(model, most_channels=3 * CHANNELS + 1)] == names[::10]
    assert [layer.name for layer in find_layers(model, most_channels=CHANNELS)] == names[-1:]
    assert len(find_layers(model)) == 12


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("offset", [0.0, 1e4], ids=["folded", "kept apart"])
def test_the_graph_computes_what_the_reference_does(activation, offset):
    """Whether offset and scale fit into the first layer's weights or stay nodes of their own."""
    forward = classifier(silu)
    known = run_graph(open_graph(with_branch_input(forward)[0]), IMAGES)["branch_input"]
    branch = random_branch(known, activation=activation)
    branch = Branch(branch.offset + np.float32(offset), branch.scale, branch.layers, activation)
    scored = add_branch(forward, branch)
    onnx.checker.check_model(scored, full_check=True)
    assert ("Sub" in {node.op_type for node in scored.graph.node}) == bool(offset)
    found = run_graph(open_graph(scored), IMAGES)["confidence_logit"]
    np.testing.assert_allclose(found, branch.confidence_logit(known), rtol=1e-4, atol=1e-4)


def test_a_branch_leaves_no_trace():
    """Branch and neighbours are added in any order, and without either the graph is what it was with the other."""
    forward = classifier(silu)
    known = run_graph(open_graph(with_branch_input(forward)[0]), IMAGES)["branch_input"]
    branch, bank = random_branch(known), known[:, :CHANNELS]
    both = add_branch(add_neighbours(forward, bank, 1), branch)
    assert [value.name for value in both.graph.output] == ["logits", "confidence_logit", "neighbour_similarity"]
    assert has_branch(both)
    assert without_branch(add_branch(forward, branch)).graph == forward.graph
    assert without_branch(both).graph == add_neighbours(forward, bank, 1).graph
    assert without_neighbours(both).graph == add_branch(forward, branch).graph
    other = add_neighbours(add_branch(forward, branch), bank, 1)
    for name, rows in run_graph(open_graph(both), IMAGES).items():
        np.testing.assert_allclose(run_graph(open_graph(other), IMAGES)[name], rows, atol=1e-6)


def test_a_branch_of_another_graph_is_refused():
    """The error says what the branch reads and what the graph has; a second branch is refused too."""
    branch = random_branch(np.ones((2, 7), np.float32))
    with pytest.raises(
        ExportError, match=r"reads 7 values, and the graph has 18: 6 features and the channels \[6, 6\]"
    ):
        add_branch(classifier(silu), branch)
    with pytest.raises(ExportError, match="without_branch"):
        add_branch(onnx.load(SHIPPED, load_external_data=False), branch)


def test_weights_beside_the_graph_stay_there(tmp_path: Path):
    """The shipped graph gets a new branch, its weights are not loaded, and the branch reads the seven activations."""
    forward = without_branch(load_without_large_weights(SHIPPED))
    assert not has_branch(forward)
    shown, widths = with_branch_input(forward)
    assert len(widths) == 8
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    known = run_graph(open_graph(shown), images)["branch_input"]
    branch = random_branch(known)
    scored = add_branch(forward, branch)
    assert weights_folder(scored) == SHIPPED.parent.absolute()
    large = [tensor for tensor in scored.graph.initializer if np.prod(tensor.dims) * 4 >= LARGE]
    assert large
    assert not any(tensor.HasField("raw_data") for tensor in large)
    share_weights([scored], tmp_path / "weights.bin")
    found = run_graph(open_graph(scored, weights_in=tmp_path), images)
    np.testing.assert_allclose(found["confidence_logit"], branch.confidence_logit(known), rtol=1e-4, atol=1e-4)
