"""How many images a graph may process at once, against what its tensors take."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from training.graphs.images_at_once import ACTIVATION_BYTES, bytes_of_one_image, images_at_once

IMAGE = 8 * 8 * 3  # bytes


def graph(nodes: list[onnx.NodeProto], *constants: onnx.TensorProto) -> onnx.ModelProto:
    """From the image [N,8,8,3] to `out`, of any shape."""
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", 8, 8, 3])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    made = helper.make_graph(nodes, "graph", [image], [out], list(constants))
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def chain() -> onnx.ModelProto:
    """Cast → Relu → Relu → ReduceMean: at most two tensors of 8×8×3 floats are needed at a time."""
    return graph(
        [
            helper.make_node("Cast", ["image"], ["a"], to=TensorProto.FLOAT),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Relu", ["b"], ["c"]),
            helper.make_node("ReduceMean", ["c", "axes"], ["out"], keepdims=0),
        ],
        numpy_helper.from_array(np.array([1, 2]), "axes"),
    )


def test_a_tensor_counts_until_its_last_use():
    """Of a chain two tensors count at a time, worked out by hand."""
    assert bytes_of_one_image(chain()) == 2 * 4 * IMAGE


def test_a_tensor_that_is_read_again_at_the_end_counts_until_then():
    """The backward pass of a perturbed graph reads what the forward pass made: all of that counts."""
    model = chain()
    model.graph.node.insert(3, helper.make_node("Add", ["c", "a"], ["d"]))
    model.graph.node[4].input[0] = "d"
    assert bytes_of_one_image(model) == 3 * 4 * IMAGE


def test_shapes_that_shape_inference_cannot_tell_are_measured():
    """A shape computed inside the graph counts as what it is when the graph runs."""
    model = graph(
        [
            helper.make_node("Cast", ["image"], ["a"], to=TensorProto.FLOAT),
            helper.make_node("Shape", ["a"], ["shape"]),
            helper.make_node("ScatterElements", ["ones", "where", "ten"], ["repeats"]),
            helper.make_node("Tile", ["a", "repeats"], ["wide"]),  # ten times as high
            helper.make_node("ReduceMean", ["wide", "axes"], ["out"], keepdims=0),
        ],
        numpy_helper.from_array(np.ones(4, np.int64), "ones"),
        numpy_helper.from_array(np.array([1]), "where"),
        numpy_helper.from_array(np.array([10]), "ten"),
        numpy_helper.from_array(np.array([1, 2]), "axes"),
    )
    needed = bytes_of_one_image(model)
    assert 11 * 4 * IMAGE <= needed <= 11 * 4 * IMAGE + IMAGE + 100  # and a few integers


@pytest.mark.parametrize(("most", "budget", "expected"), [(250, ACTIVATION_BYTES, 250), (250, 20_000, 13), (9, 1, 1)])
def test_as_many_images_as_there_is_room_for(most, budget, expected):
    """At most `most`, at most what the budget holds, and at least one."""
    assert images_at_once(chain(), most, budget) == expected


def test_a_graph_that_cannot_be_measured_takes_one_image_at_a_time(tmp_path):
    """Where the graph fails with its shapes asked for, nothing is assumed of its size."""
    broken = chain()
    broken.graph.node[1].op_type = "NoSuchOperator"
    assert images_at_once(broken, 250) == 1
    other_input = chain()
    other_input.graph.input[0].name = "pixels"
    assert images_at_once(other_input, 250) == 1
    (tmp_path / "damaged.onnx").write_bytes(b"not a graph")
    assert images_at_once(tmp_path / "damaged.onnx", 250) == 1
    assert images_at_once(tmp_path / "missing.onnx", 250) == 1
