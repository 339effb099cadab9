"""One weights file for several graphs."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from training.graphs.run import open_graph, run_graph
from training.graphs.weights import move_large_weights, share_weights


def graph_with(weights: np.ndarray, bias: float) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "weights"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["out"]),
    ]
    initialisers = [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(np.float32(bias), "bias")]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", 32])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", weights.shape[1]])],
        initialisers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_two_graphs_share_their_weights_and_answer_as_before(tmp_path):
    """Equal tensors are stored once, small ones stay inside, and both graphs compute what they did."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(32, 32)).astype(np.float32)
    image = rng.integers(0, 256, (3, 32), dtype=np.uint8)
    graphs = [graph_with(weights, 1.0), graph_with(weights, 2.0)]
    before = [run_graph(open_graph(graph), image)["out"] for graph in graphs]
    assert share_weights(graphs, tmp_path / "weights.bin")
    assert (tmp_path / "weights.bin").stat().st_size == weights.nbytes
    for k, graph in enumerate(graphs):
        onnx.save(graph, tmp_path / f"{k}.onnx")
        assert (tmp_path / f"{k}.onnx").stat().st_size < 1024
        np.testing.assert_array_equal(run_graph(open_graph(tmp_path / f"{k}.onnx"), image)["out"], before[k])


def test_different_weights_are_kept_apart(tmp_path):
    """Graphs with different weights find each its own in the shared file."""
    weights = [np.full((32, 32), value, np.float32) for value in (1.0, 2.0)]
    graphs = [graph_with(w, 0.0) for w in weights]
    share_weights(graphs, tmp_path / "weights.bin")
    image = np.ones((1, 32), np.uint8)
    for k, graph in enumerate(graphs):
        onnx.save(graph, tmp_path / f"{k}.onnx")
        assert run_graph(open_graph(tmp_path / f"{k}.onnx"), image)["out"][0, 0] == 32 * (k + 1)


def test_large_weights_in_a_file_answer_as_before(tmp_path):
    """A graph whose weights were moved to a folder computes what it did, also as a copy, and is written whole."""
    weights = np.random.default_rng(0).normal(size=(32, 16_384)).astype(np.float32)  # 2 MB
    graph = graph_with(weights, 1.0)
    image = np.arange(64, dtype=np.uint8).reshape(2, 32)
    before = run_graph(open_graph(graph), image)["out"]
    moved, bundle = tmp_path / "moved", tmp_path / "bundle"
    moved.mkdir()
    bundle.mkdir()
    move_large_weights(graph, moved)
    assert graph.ByteSize() < 1024
    copied = onnx.ModelProto()
    copied.CopyFrom(graph)
    np.testing.assert_array_equal(run_graph(open_graph(copied), image)["out"], before)
    assert share_weights([copied], bundle / "weights.bin")
    onnx.save(copied, bundle / "graph.onnx")
    (moved / "weights.bin").unlink()
    np.testing.assert_array_equal(run_graph(open_graph(bundle / "graph.onnx"), image)["out"], before)
    assert str(tmp_path).encode() not in (bundle / "graph.onnx").read_bytes()
