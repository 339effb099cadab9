"""What a graph computes for one image, against values worked out by hand."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from training.graphs.work import OF_A_VALUE, images_within, work_of_one_image

CAST = 8 * 8 * 3 * OF_A_VALUE  # every graph here begins with it


def graph(nodes: list[onnx.NodeProto], **constants: tuple[int, ...]) -> onnx.ModelProto:
    """From the image [N,8,8,3] to `out`; constants are zeros of these shapes."""
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", 8, 8, 3])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    cast = helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT)
    weights = [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in constants.items()]
    made = helper.make_graph([cast, *nodes], "graph", [image], [out], weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_a_convolution_counts_each_weight_for_each_place():
    """3 to 16 channels in two groups, 3×3, stride 2: 16 × 4 × 4 values, each from 2 × 9 products."""
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["wide"], axis=1),  # [N,16,8,3]: 16 channels
        helper.make_node("Conv", ["wide", "w"], ["out"], group=8, strides=[2, 1], pads=[1, 1, 1, 1]),
    ]
    made = 16 * 4 * 3
    assert work_of_one_image(graph(nodes, w=(16, 2, 3, 3))) == CAST + OF_A_VALUE * (2 * 192 + made) + made * 2 * 9


def test_a_matrix_product_counts_what_it_sums_over():
    """[N,8,8,3] by [3,5]; two tensors of the image multiply alike."""
    made = 8 * 8 * 5
    nodes = [helper.make_node("MatMul", ["x", "w"], ["out"])]
    assert work_of_one_image(graph(nodes, w=(3, 5))) == CAST + made * (OF_A_VALUE + 3)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x", "t"], ["out"]),
    ]
    assert work_of_one_image(graph(nodes)) == CAST + 192 * OF_A_VALUE + 8 * 8 * 8 * (OF_A_VALUE + 3)


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_linear_layer_counts_its_weights(transposed):
    """Gemm with either order of its first input's axes."""
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"], axis=1 - transposed),  # [1,192], or [192,1] for one image
        helper.make_node("Gemm", ["flat", "w"], ["out"], transA=0),
    ]
    if transposed:
        nodes[0] = helper.make_node("Reshape", ["x", "shape"], ["flat"])
        nodes[1] = helper.make_node("Gemm", ["flat", "w"], ["out"], transA=1)
    model = graph(nodes, w=(192, 7))
    model.graph.initializer.append(numpy_helper.from_array(np.array([192, -1]), "shape"))
    assert work_of_one_image(model) == CAST + OF_A_VALUE * (192 + 7) + 192 * 7


def test_what_only_weights_go_into_does_not_count():
    """Quantised weights are made floats once, not for each image."""
    nodes = [
        helper.make_node("Relu", ["w"], ["positive"]),
        helper.make_node("MatMul", ["x", "positive"], ["out"]),
    ]
    assert work_of_one_image(graph(nodes, w=(3, 5))) == CAST + 320 * (OF_A_VALUE + 3)


def test_nothing_is_said_of_a_graph_that_does_not_run():
    """Then the fewest images are taken, which is the least that can go wrong."""
    assert work_of_one_image(graph([helper.make_node("NoSuchOperator", ["x"], ["out"])])) is None
    assert images_within(1_000, None, 5, 50) == 5


@pytest.mark.parametrize(("of_one", "images"), [(0, 50), (1, 50), (100, 10), (1_000, 5)])
def test_work_is_shared_out_among_images(of_one, images):
    """As many as it is enough for, within bounds."""
    assert images_within(1_000, of_one, 5, 50) == images
