"""The bank of neighbours of a bundle: from training images, or from half of the calibration images."""

import numpy as np
import onnx
import pytest

from service.model.bundle import Input
from tests.training.small_network import IMAGES, MEAN, STD, network_with
from training.bundles.bank import bank_of, features_of, with_bank
from training.calibration.calibrate import Evidence
from training.data.splits import LabelledImages
from training.graphs.from_torch import export_network
from training.graphs.neighbours import neighbour_similarity
from training.graphs.run import open_graph, run_graph

SHAPE = Input(width=16, height=16, resize="stretch", interpolation="bilinear")
CALIBRATION = LabelledImages(IMAGES, np.arange(len(IMAGES)) % 4)
OTHERS = LabelledImages(255 - IMAGES, np.arange(len(IMAGES)) % 4)


@pytest.fixture(scope="module")
def forward() -> onnx.ModelProto:
    return export_network(network_with(branch=True), MEAN, STD, 16)


def test_training_images_make_the_bank_where_they_are_known(forward):
    """The bank holds training images, and no calibration image needs to be left out of it."""
    made = with_bank(forward, SHAPE, Evidence("set", CALIBRATION, None, train=OTHERS))
    features = features_of(forward, SHAPE, OTHERS)
    assert np.allclose(bank_of(made.forward).T, features / np.linalg.norm(features, axis=1, keepdims=True), atol=1e-6)
    assert not made.evidence.own_similarity
    assert made.note is None


def test_a_calibration_image_in_the_bank_is_not_its_own_neighbour(forward):
    """Without training images the bank is of calibration images, each compared with the others alone."""
    made = with_bank(forward, SHAPE, Evidence("set", CALIBRATION, None))
    features = features_of(forward, SHAPE, CALIBRATION)
    expected = neighbour_similarity(features, features, 1, np.arange(len(features)))
    own = made.evidence.own_similarity
    assert [own[index] for index in range(len(IMAGES))] == pytest.approx(expected.tolist(), abs=1e-5)
    served = run_graph(open_graph(made.forward), IMAGES)["neighbour_similarity"]
    assert served == pytest.approx(1.0, abs=1e-5)  # the graph itself sees every image in its bank


def test_a_bank_that_is_there_already_stays(forward):
    """Calibrating again keeps the graph, and still leaves the images out that are in its bank."""
    first = with_bank(forward, SHAPE, Evidence("set", CALIBRATION, None))
    again = with_bank(first.forward, SHAPE, Evidence("set", CALIBRATION, None))
    assert again.forward is first.forward
    assert again.evidence.own_similarity == pytest.approx(first.evidence.own_similarity)
    others = with_bank(first.forward, SHAPE, Evidence("other", OTHERS, None))
    assert not others.evidence.own_similarity


def test_a_graph_without_features_stays_as_it_is_with_a_note():
    """Where no last linear layer is found, there are no neighbours, and the note says so."""
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Cast", ["image"], ["pixels"], to=onnx.TensorProto.FLOAT),
            onnx.helper.make_node("ReduceMean", ["pixels", "axes"], ["logits"], keepdims=0),
        ],
        "plain",
        [value("image", onnx.TensorProto.UINT8, ["N", 16, 16, 3])],
        [value("logits", onnx.TensorProto.FLOAT, ["N", 3])],
        [onnx.numpy_helper.from_array(np.array([1, 2]), "axes")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    made = with_bank(model, SHAPE, Evidence("set", CALIBRATION, None))
    assert made.forward is model
    assert made.note is not None
    assert made.note.startswith("no neighbours: ")
