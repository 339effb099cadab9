"""The perturbed graph of a bundle, against torch autograd."""

import numpy as np
import onnx
import pytest

from tests.training.small_network import IMAGES, MEAN, STD, network_with
from training.errors import ExportError
from training.graphs.from_torch import export_network
from training.graphs.parity import check_perturbed_parity
from training.graphs.perturbed import perturbed_graph


@pytest.fixture(scope="module")
def images():
    return IMAGES


@pytest.mark.parametrize("branch", [True, False])
def test_equals_torch_autograd(branch, images):
    """With the branch and, as ODIN, without it the preprocessed score is torch's at every batch size."""
    network = network_with(branch)
    perturbed = perturbed_graph(export_network(network, MEAN, STD, 16))
    assert check_perturbed_parity(perturbed, network, MEAN, STD, images, epsilon=0.01) < 1e-4


def test_a_wrong_direction_is_refused(images):
    """A graph that moves the image away from confidence does not pass the check."""
    network = network_with(True)
    perturbed = perturbed_graph(export_network(network, MEAN, STD, 16))
    for node in perturbed.graph.node:
        if node.op_type == "Sign":
            node.input[:], direction = ["reversed"], node.input[0]
            place = list(perturbed.graph.node).index(node)
            break
    perturbed.graph.node.insert(place, onnx.helper.make_node("Neg", [direction], ["reversed"]))
    with pytest.raises(ExportError, match="differs from torch"):
        check_perturbed_parity(perturbed, network, MEAN, STD, images, epsilon=0.05)


@pytest.mark.parametrize("output", ["logits", "confidence_logit"])
def test_wrong_answers_for_the_clean_image_are_refused(images, output):
    """A perturbed graph whose own logits or confidence are off is refused, though its preprocessed score is right."""
    network = network_with(True)
    perturbed = perturbed_graph(export_network(network, MEAN, STD, 16))
    for node in perturbed.graph.node:
        node.input[:] = [f"true_{output}" if name == output else name for name in node.input]
        node.output[:] = [f"true_{output}" if name == output else name for name in node.output]
    perturbed.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1e-2), "error"))
    perturbed.graph.node.append(onnx.helper.make_node("Add", [f"true_{output}", "error"], [output]))
    with pytest.raises(ExportError, match="differs from torch"):
        check_perturbed_parity(perturbed, network, MEAN, STD, images, epsilon=0.01)
