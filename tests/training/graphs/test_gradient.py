"""The graph that input preprocessing makes: its contract, its errors, and what it shares with the forward graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, parser
from torch import Tensor, nn

from tests.training.graphs.gradient_reference import autograd, export, input_gradient, run
from training.graphs.gradient import GradientError, NoRuleError, add_input_preprocessing

# Operators with a CUDA kernel at opset 18, by the table in docs/OperatorKernels.md of onnxruntime.
ON_CUDA = {
    *("Abs", "Add", "And", "ArgMax", "AveragePool", "BatchNormalization", "Cast", "Clip", "Concat", "ConstantOfShape"),
    *(
        "Conv",
        "ConvTranspose",
        "Div",
        "Equal",
        "Erf",
        "Exp",
        "Expand",
        "Flatten",
        "Gather",
        "Gemm",
        "GlobalAveragePool",
    ),
    *("Greater", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "MatMul", "MaxPool", "Mul", "Neg", "Pad"),
    *("Pow", "Range", "ReduceMax", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Resize", "ScatterElements", "Shape"),
    *("Sigmoid", "Sign", "Size", "Slice", "Softmax", "Softplus", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh"),
    *("Transpose", "Unsqueeze", "Where"),
}


class TwoHeads(nn.Module):
    """A network of the usual parts, small enough to look at."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.GELU(), nn.Flatten()
        )
        self.head, self.branch = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return self.head(features), self.branch(features).squeeze(1)


class Plain(TwoHeads):
    """The same without a confidence branch, with logits so far apart that the softmax is exactly one-hot."""

    def forward(self, x: Tensor) -> Tensor:
        return 400 * super().forward(x)[0]


@pytest.fixture(scope="module")
def network() -> TwoHeads:
    torch.manual_seed(0)
    return TwoHeads().eval()


@pytest.fixture(scope="module")
def plain() -> Plain:
    torch.manual_seed(0)
    return Plain().eval()


@pytest.fixture(scope="module")
def forward(network: TwoHeads) -> onnx.ModelProto:
    return export(network, torch.zeros(2, 3, 8, 8), ["logits", "confidence_logit"])


@pytest.fixture(scope="module")
def plain_forward(plain: Plain) -> onnx.ModelProto:
    return export(plain, torch.zeros(2, 3, 8, 8), ["logits"])


def epsilon(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def test_inputs_and_outputs_are_those_of_the_contract(forward: onnx.ModelProto) -> None:
    """The graph gains the scalar input epsilon and the output confidence_logit_preprocessed [N], and loses nothing."""
    graph = add_input_preprocessing(forward).graph
    assert [value.name for value in graph.input] == ["normalised", "epsilon"]
    assert graph.input[1].type.tensor_type == onnx.TypeProto.Tensor(elem_type=1, shape=onnx.TensorShapeProto())
    assert [value.name for value in graph.output] == ["logits", "confidence_logit", "confidence_logit_preprocessed"]
    assert graph.output[2].type == graph.output[1].type


def test_clean_outputs_are_those_of_the_forward_graph(forward: onnx.ModelProto) -> None:
    """Adding the preprocessing does not change what is said about the clean image."""
    x = torch.randn(5, 3, 8, 8).numpy()
    clean, both = run(forward, normalised=x), run(add_input_preprocessing(forward), normalised=x, epsilon=epsilon(0.1))
    for name in clean:
        np.testing.assert_allclose(both[name], clean[name], rtol=1e-6, atol=1e-6)


def test_epsilon_zero_changes_nothing_and_a_small_one_raises_the_score(forward: onnx.ModelProto) -> None:
    """The perturbation goes towards a higher confidence, as far as epsilon says."""
    x, graph = torch.randn(5, 3, 8, 8).numpy(), add_input_preprocessing(forward)
    still = run(graph, normalised=x, epsilon=epsilon(0))
    np.testing.assert_allclose(still["confidence_logit_preprocessed"], still["confidence_logit"], rtol=1e-6, atol=1e-6)
    moved = run(graph, normalised=x, epsilon=epsilon(1e-3))
    assert (moved["confidence_logit_preprocessed"] > moved["confidence_logit"]).all()


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_batch_is_dynamic_and_images_do_not_influence_each_other(forward: onnx.ModelProto, batch: int) -> None:
    """Any batch size gives each image the answer that it gets alone."""
    x, graph = torch.randn(batch, 3, 8, 8).numpy(), add_input_preprocessing(forward)
    together = run(graph, normalised=x, epsilon=epsilon(0.05))["confidence_logit_preprocessed"]
    alone = [run(graph, normalised=image[None], epsilon=epsilon(0.05))["confidence_logit_preprocessed"] for image in x]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)


def test_weights_are_stored_once(forward: onnx.ModelProto) -> None:
    """Every initialiser of the forward graph is there once, and what is added weighs next to nothing."""
    before = {tensor.name: tensor for tensor in forward.graph.initializer}
    after = [tensor.name for tensor in add_input_preprocessing(forward).graph.initializer]
    assert len(after) == len(set(after))
    assert set(before) <= set(after)
    added = [t for t in add_input_preprocessing(forward).graph.initializer if t.name not in before]
    assert sum(tensor.ByteSize() for tensor in added) < 2000


def test_second_pass_leaves_out_the_class_head(forward: onnx.ModelProto) -> None:
    """The perturbed image is only asked for its confidence, so the head's weights are read once."""
    nodes = add_input_preprocessing(forward).graph.node
    assert sum("head.weight" in node.input for node in nodes) == 1
    # Forward, the gradient, and forward again.
    assert sum("branch.weight" in node.input for node in nodes) == 3


def test_the_given_graph_is_left_as_it_was(forward: onnx.ModelProto) -> None:
    """The forward graph can still be saved and used after the call."""
    before = forward.SerializeToString(deterministic=True)
    add_input_preprocessing(forward)
    input_gradient(forward)
    assert forward.SerializeToString(deterministic=True) == before


def test_every_operator_has_a_cuda_kernel(forward: onnx.ModelProto, plain_forward: onnx.ModelProto) -> None:
    """No node of either graph would send its data back to the CPU."""
    for model in (forward, plain_forward):
        nodes = add_input_preprocessing(model).graph.node
        assert {node.op_type for node in nodes} - {"Constant"} <= ON_CUDA
        assert all(node.domain == "" for node in nodes)


def test_classifier_is_moved_towards_its_predicted_class(plain: Plain, plain_forward: onnx.ModelProto) -> None:
    """Without a confidence branch, the gradient is that of the log of the largest softmax at the temperature (ODIN)."""

    class LogLargestSoftmax(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log_softmax(plain(x).double() / 1000, 1).amax(1)

    x = torch.randn(6, 3, 8, 8)
    direction = autograd(LogLargestSoftmax(), x).sign()
    signs = np.sign(run(input_gradient(plain_forward, temperature=1000), normalised=x.numpy())["gradient"])
    assert (signs == direction.numpy()).mean() > 0.999
    graph = add_input_preprocessing(plain_forward, temperature=1000)
    found = run(graph, normalised=x.numpy(), epsilon=epsilon(0.01))
    assert list(found) == ["logits", "logits_preprocessed"]
    with torch.no_grad():
        expected = plain(x + 0.01 * direction).numpy()
    np.testing.assert_allclose(found["logits_preprocessed"], expected, atol=1e-3 * np.abs(expected).max())


def test_saturated_softmax_still_has_a_direction(plain_forward: onnx.ModelProto) -> None:
    """At temperature 1 these softmaxes are exactly one-hot in float32, and autograd on them would find no gradient."""
    x = torch.randn(6, 3, 8, 8).numpy()
    found = run(add_input_preprocessing(plain_forward, temperature=1.0), normalised=x, epsilon=epsilon(1e-3))
    margins = []
    for name in ("logits", "logits_preprocessed"):
        ordered = np.sort(found[name], 1)
        margins.append(ordered[:, -1] - ordered[:, -2])
    assert (margins[0] > 20).any()
    assert (margins[1] > margins[0]).all()


def test_operator_without_a_rule_is_named(forward: onnx.ModelProto) -> None:
    """The error says which operator and which node, so that a person can look it up in the graph."""
    model = onnx.ModelProto.FromString(forward.SerializeToString())
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    relu.op_type = "Atan"
    with pytest.raises(NoRuleError, match=rf"cannot differentiate Atan \(node '{relu.name}'\)") as caught:
        add_input_preprocessing(model)
    assert (caught.value.op_type, caught.value.node_name) == ("Atan", relu.name)


def test_operator_beside_the_path_needs_no_rule(forward: onnx.ModelProto) -> None:
    """What only leads to the logits is not differentiated."""
    model = onnx.ModelProto.FromString(forward.SerializeToString())
    head = next(node for node in model.graph.node if "head.weight" in node.input)
    head.output[0] = "before"
    model.graph.node.append(helper.make_node("Atan", ["before"], ["logits"]))
    assert run(add_input_preprocessing(model), normalised=np.zeros((1, 3, 8, 8), np.float32), epsilon=epsilon(0.1))


def test_unknown_domain_is_named(forward: onnx.ModelProto) -> None:
    """An operator of the same name from elsewhere is another operator."""
    model = onnx.ModelProto.FromString(forward.SerializeToString())
    next(node for node in model.graph.node if node.op_type == "Relu").domain = "elsewhere"
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    with pytest.raises(NoRuleError, match=r"elsewhere\.Relu"):
        add_input_preprocessing(model)


ERRORS = {
    "no tensor 'normalised'": "(float[N,3] x) => (float[N,3] logits) { logits = Relu (x) }",
    "neither 'confidence_logit' nor 'logits'": "(float[N,3] normalised) => (float[N,3] y) { y = Relu (normalised) }",
    "no gradient reaches": "(float[N] normalised, float[N,3] x) => (float[N,3] logits) { logits = Neg (x) }",
    "is not float32": "(int32[N,3] normalised) => (int32[N,3] logits) { logits = Neg (normalised) }",
    "fixed number of classes": "(float[N,K] normalised) => (float[N,K] logits) { logits = Neg (normalised) }",
}


@pytest.mark.parametrize("message", ERRORS)
def test_unusable_graph_is_refused(message: str) -> None:
    """A graph that breaks the contract is refused with what is wrong with it."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> agraph {ERRORS[message]}')
    with pytest.raises(GradientError, match=message):
        add_input_preprocessing(model)


def test_old_opset_is_refused(forward: onnx.ModelProto) -> None:
    """The rules know the operators as opset 18 defines them; the error says how to get there."""
    model = onnx.ModelProto.FromString(forward.SerializeToString())
    model.opset_import[0].version = 13
    with pytest.raises(GradientError, match=r"opset 13.*convert_version"):
        add_input_preprocessing(model)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_temperature_must_be_positive(plain_forward: onnx.ModelProto, temperature: float) -> None:
    """A temperature of zero or less has no softmax."""
    with pytest.raises(GradientError, match="temperature"):
        add_input_preprocessing(plain_forward, temperature=temperature)
