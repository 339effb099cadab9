"""The perturbed graph of a bundle, against torch autograd."""

import numpy as np
import onnx
import pytest

from tests.training.small_network import IMAGES, MEAN, STD, network_with
from training.errors import ExportError
from training.graphs.from_torch import export_network
from training.graphs.gradient.rules import RULES
from training.graphs.image_input import with_image_input
from training.graphs.parity import check_perturbed_parity
from training.graphs.perturbed import perturbed_graph, perturbed_or_note


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


def image_graph(text: str) -> onnx.ModelProto:
    """A classifier of two classes from the normalised image to `logits`, as text, behind the contract's input."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> agraph (float[N,3,4,4] x) => (float[N,2] logits) '
        "<int64[3] places = {1, 2, 3}, int64[1] side = {1}, int64[1] two = {2}> "
        f"{{ {text} first = ReduceMean <keepdims = 0> (y, places) second = Neg (first) f = Unsqueeze (first, side) "
        "s = Unsqueeze (second, side) logits = Concat <axis = 1> (f, s) }"
    )
    return with_image_input(model, (0, 0, 0), (1, 1, 1))


def test_a_gradient_that_is_not_finite_counts_as_missing():
    """At a black image a square root has no derivative: the note says so, and there is no graph."""
    found = perturbed_or_note(image_graph("y = Sqrt (x)"))
    assert found.graph is None
    assert found.note == (
        "no input preprocessing, and no score odin (ODIN): the gradient of the graph is not finite for a black image"
    )


def test_a_graph_that_onnx_runtime_cannot_open_counts_as_missing():
    """A rule's nodes are only as good as the kernels for them: ONNX Runtime's refusal is a note."""
    found = perturbed_or_note(image_graph("d = Cast <to = 10> (x) h = HardSwish (d) y = Cast <to = 1> (h)"))
    assert found.graph is None
    assert "ONNX Runtime cannot run the perturbed graph" in found.note


def test_a_failing_rule_is_named_with_its_node(monkeypatch):
    """Whatever a rule trips over is told with the operator, and never a traceback."""

    def broken(step):
        raise KeyError(f"{step.node.op_type} axis")

    monkeypatch.setitem(RULES, "Tanh", broken)
    found = perturbed_or_note(image_graph("y = Tanh (x)"))
    assert found.graph is None
    assert "cannot differentiate Tanh (node 'y'): its rule failed with KeyError: 'Tanh axis'" in found.note


def test_shapes_that_inference_does_not_know_are_measured():
    """A window whose padding is computed from the image's size, as TensorFlow's converters write it."""
    text = (
        "size = Shape (x) half = Div (size, two) r = ReduceProd <keepdims = 1> (half) p = Mod (r, two) "
        "pads = Concat <axis = 0> (p, p, p, p, p, p, p, p) w = Pad (x, pads) y = MaxPool <kernel_shape = [2, 2]> (w)"
    )
    assert perturbed_or_note(image_graph(text)).note is None


def test_nodes_need_no_names():
    """ONNX leaves the names of nodes open, and the copies for the second pass must not share one."""
    assert perturbed_or_note(image_graph("t = Tanh (x) y = Exp (t)")).note is None
