"""torch → ONNX: every output equals torch's at every batch size, and what differs is refused."""

import numpy as np
import onnx
import pytest
import torch

from training.errors import ExportError
from training.graphs.from_torch import export_network
from training.graphs.parity import check_parity
from training.graphs.run import open_graph, run_graph
from training.networks import add_confidence_branch, compact

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    net = add_confidence_branch(compact(4, 16, (8, 12, 16)), (6,))
    for norm in net.modules():  # as after training: statistics that are not 0 and 1
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return net.eval()


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (32, 16, 16, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def graph(network):
    return export_network(network, MEAN, STD, 16)


def test_graph_has_the_contracts_tensors(graph):
    """Input uint8 [N,H,W,3], outputs logits [N,K] and confidence_logit [N], opset 18, batch free."""
    session = open_graph(graph)
    (image,) = session.get_inputs()
    assert (image.name, image.type, image.shape[1:]) == ("image", "tensor(uint8)", [16, 16, 3])
    assert isinstance(image.shape[0], str)
    outputs = {o.name: (o.type, o.shape[1:]) for o in session.get_outputs()}
    assert outputs == {"logits": ("tensor(float)", [4]), "confidence_logit": ("tensor(float)", [])}
    assert graph.opset_import[0].version == 18


def test_outputs_equal_torch_at_every_batch_size(graph, network, images):
    """Parity over batch 1, 2, 7 and 32 is far inside the tolerance."""
    assert check_parity(graph, network, MEAN, STD, images) < 1e-5


def test_batches_do_not_influence_each_other(graph, images):
    """An image's answer does not depend on the images it is computed with."""
    session = open_graph(graph)
    together, alone = run_graph(session, images, 32), run_graph(session, images, 1)
    for name in together:
        np.testing.assert_allclose(together[name], alone[name], atol=1e-5)


@pytest.mark.parametrize("output", ["logits", "confidence_logit"])
def test_a_difference_in_any_output_is_refused(graph, network, images, output):
    """A graph whose logits or whose confidence alone is off by a thousandth does not pass."""
    spoilt = onnx.ModelProto()
    spoilt.CopyFrom(graph)
    for node in spoilt.graph.node:
        node.output[:] = [f"true_{output}" if name == output else name for name in node.output]
    spoilt.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1e-3), "error"))
    spoilt.graph.node.append(onnx.helper.make_node("Add", [f"true_{output}", "error"], [output]))
    with pytest.raises(ExportError, match="differs from torch"):
        check_parity(spoilt, network, MEAN, STD, images)


def test_plain_classifier_has_only_logits():
    """A network without the branch exports with one output."""
    session = open_graph(export_network(compact(4, 16, (8, 8, 8)).eval(), MEAN, STD, 16))
    assert [output.name for output in session.get_outputs()] == ["logits"]


def test_graph_carries_no_file_names(graph):
    """The exporter's stack traces, with paths of the machine it ran on, are not in the file."""
    assert b".py" not in graph.SerializeToString()
