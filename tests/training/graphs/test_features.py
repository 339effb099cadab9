"""Penultimate features are found in graphs of every kind, and a graph without them says why."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.training.graphs import head_graphs
from tests.training.graphs.head_graphs import CHANNELS, HEADS, IMAGES, WEIGHT, Head, classifier
from training.graphs.features import NoFeaturesError, find_features, with_features
from training.graphs.run import open_graph, run_graph

ROOT = Path(__file__).parents[3]
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def expected_features() -> np.ndarray:
    """The spatial mean of the feature map, which every head reads in one form or another."""
    shown = classifier(head_graphs.gemm)
    shown.graph.output.append(helper.make_tensor_value_info("map", TensorProto.FLOAT, None))
    return run_graph(open_graph(shown), IMAGES)["map"].astype(np.float64).mean(axis=(2, 3))


@pytest.mark.parametrize("head", HEADS)
def test_features_are_the_mean_of_the_feature_map(head):
    """Whatever the last layer is, `features` [N,D] is what it reads, and the logits stay what they were."""
    plain = classifier(head)
    onnx.checker.check_model(plain, full_check=True)
    shown = with_features(plain)
    onnx.checker.check_model(shown, full_check=True)
    found = run_graph(open_graph(shown), IMAGES, batch=4)
    tolerance = 0.011 if head is head_graphs.quantised else 1e-5  # half a step of 0.02
    np.testing.assert_allclose(found["features"], expected_features(), atol=tolerance)
    assert found["features"].dtype == np.float32
    np.testing.assert_array_equal(found["logits"], run_graph(open_graph(plain), IMAGES, batch=4)["logits"])


def test_the_name_is_that_of_the_tensor_the_last_layer_reads():
    """The features are named as the graph names them, behind the quantisation where there is one."""
    assert find_features(classifier(head_graphs.gemm)) == "pooled"
    assert find_features(classifier(head_graphs.conv_before_pooling)) == "map"
    assert find_features(classifier(head_graphs.quantised)) == "shown"


def test_half_precision_features_become_float32():
    """A float16 network shows its features as float32."""

    def half(head: Head) -> None:
        head.op("MatMul", head.pooled(), head.constant(WEIGHT, np.float16), output="half")
        head.op("Cast", "half", output="logits", to=TensorProto.FLOAT)

    found = run_graph(open_graph(with_features(classifier(half, TensorProto.FLOAT16))), IMAGES)["features"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected_features(), rtol=5e-3)


def test_a_tensor_that_is_already_called_features_makes_way():
    """A graph that uses the output's name for an inner tensor answers the same."""
    model = classifier(head_graphs.gemm)
    for node in model.graph.node:
        node.input[:] = ["features" if name == "map" else name for name in node.input]
        node.output[:] = ["features" if name == "map" else name for name in node.output]
    found = run_graph(open_graph(with_features(model)), IMAGES)
    np.testing.assert_allclose(found["features"], expected_features(), atol=1e-5)


@pytest.mark.parametrize("version", [1, 5])
def test_weights_beside_the_graph_are_not_read(version):
    """The features of a shipped graph are found from its structure, without its weights file."""
    path = ROOT / "models" / "cifar10" / str(version) / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    shown = with_features(model)
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    found = run_graph(open_graph(shown, weights_in=path.parent), images)
    assert found["features"].shape == (3, 256)
    np.testing.assert_array_equal(found["logits"], run_graph(open_graph(path), images)["logits"])


@pytest.mark.parametrize(
    ("network", "tensor"),
    [
        ("bvlc_alexnet", "r22"),
        ("densenet121", "r908"),
        ("inception_v1", "r141"),
        ("resnet50", "r173"),
        ("shufflenet", "r200"),
        ("squeezenet", "r61"),
        ("vgg19", "r44"),
    ],
)
def test_published_networks(network, tensor):
    """In the published classifiers that the package onnx carries, the features are what the last layer reads."""
    model = onnx.load(LIGHT / f"light_{network}.onnx")
    (output,) = model.graph.output
    for node in model.graph.node:
        node.output[:] = ["logits" if name == output.name else name for name in node.output]
    output.name = "logits"
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    assert find_features(model) == tensor


def wide_kernel(head: Head) -> None:
    kernel = np.ones((4, CHANNELS, 3, 3))
    head.op("Flatten", head.op("GlobalAveragePool", head.op("Conv", "map", head.constant(kernel))), output="logits")


def two_paths(head: Head) -> None:
    pooled = head.pooled()
    head.op(
        "Add",
        head.op("Gemm", pooled, head.constant(WEIGHT)),
        head.op("Slice", pooled, *slice_of(head)),
        output="logits",
    )


def slice_of(head: Head) -> list[str]:
    return [head.constant([value], np.int64) for value in (0, 4, 1)]


def computed_weight(head: Head) -> None:
    square = head.op("Transpose", "map", perm=[0, 1, 3, 2])
    head.op("ReduceMax", head.op("MatMul", "map", square), head.constant([2, 3], np.int64), keepdims=0, output="most")
    head.op("Slice", "most", *slice_of(head), output="logits")


def no_layer(head: Head) -> None:
    head.op("Slice", head.pooled(), *slice_of(head), output="logits")


def unknown_operator(head: Head) -> None:
    scores = head.op("Gemm", head.pooled(), head.constant(WEIGHT))
    head.op("Riddle", scores, output="logits", domain="com.example")


def rows_of_positions(head: Head) -> None:
    """Each position of each image is a row of one Gemm; their mean is the image's logits."""
    rows = head.op("Reshape", head.op("Transpose", "map", perm=[0, 2, 3, 1]), head.constant([-1, CHANNELS], np.int64))
    scores = head.op("Reshape", head.op("Gemm", rows, head.constant(WEIGHT)), head.constant([-1, 64, 4], np.int64))
    head.op("ReduceMean", scores, head.constant([1], np.int64), keepdims=0, output="logits")


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (wide_kernel, "1×1 kernel"),
        (two_paths, "leads around it"),
        (computed_weight, "not a constant weight"),
        (no_layer, "Conv .* 1×1 kernel"),
        (unknown_operator, r"com\.example\.Riddle .*not known"),
        (rows_of_positions, "one row for each image"),
    ],
)
def test_a_graph_without_features_says_why(head: Callable[[Head], None], why: str):
    """The error names the node that ended the search and the reason."""
    with pytest.raises(NoFeaturesError, match=why):
        find_features(classifier(head))


def test_a_graph_without_logits_is_refused():
    """A graph with other outputs is told which output was expected."""
    model = classifier(head_graphs.gemm)
    model.graph.output[0].name = "pooled"
    with pytest.raises(NoFeaturesError, match="'logits' among them"):
        find_features(model)
