"""Gradient rules on graphs that other tools than torch write: attributes, spellings and operators of their own."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import nn

from tests.training.graphs.gradient_reference import (
    Function,
    Weighted,
    assert_gradient_equals_autograds,
    autograd,
    input_gradient,
    run,
)
from training.graphs.gradient import GradientError, NoRuleError

KERNEL, MATRIX = torch.randn(5, 8, 3, 3), torch.randn(512, 7) / 25
TABLE = torch.tensor([[1, 5, 1], [0, 7, 2]])
EIGHT, SQUARE = torch.linspace(-1, 1, 8), torch.randn(8, 8)
SCALES = torch.linspace(0.005, 0.03, 8)

# The text form of a graph, and the same in torch.
FOREIGN: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "conv-same-upper": (
        'y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (normalised, kernel)',
        lambda x: F.conv2d(F.pad(x, (0, 1, 0, 1)), KERNEL, stride=2),
    ),
    "conv-same-lower": (
        'y = Conv <auto_pad = "SAME_LOWER", strides = [2, 2]> (normalised, kernel)',
        lambda x: F.conv2d(F.pad(x, (1, 0, 1, 0)), KERNEL, stride=2),
    ),
    "conv-unequal-pads": (
        "y = Conv <pads = [0, 1, 2, 0]> (normalised, kernel)",
        lambda x: F.conv2d(F.pad(x, (1, 0, 0, 2)), KERNEL),
    ),
    "gemm-transposed": (
        "f = Flatten (normalised) t = Transpose (f) y = Gemm <transA = 1, alpha = 0.5> (t, matrix)",
        lambda x: 0.5 * x.flatten(1) @ MATRIX,
    ),
    "gemm-bias": (
        "f = Flatten (normalised) h = MatMul (f, matrix) z = Gemm <beta = 2.0> (f, matrix, h) y = Tanh (z)",
        lambda x: torch.tanh(3 * x.flatten(1) @ MATRIX),
    ),
    "gemm-second-operand": (
        "f = Flatten (normalised) t = Transpose (f) g = Gemm <transA = 1> (matrix, t) y = Transpose (g)",
        lambda x: x.flatten(1) @ MATRIX,
    ),
    "gemm-second-operand-transposed": (
        "f = Flatten (normalised) g = Gemm <transA = 1, transB = 1> (matrix, f) y = Transpose (g)",
        lambda x: x.flatten(1) @ MATRIX,
    ),
    "global-max-pool": ("y = GlobalMaxPool (normalised)", lambda x: F.adaptive_max_pool2d(x, 1)),
    "dropout-node": ("d = Dropout (normalised) y = Tanh (d)", torch.tanh),
    "identity": ("i = Identity (normalised) y = Tanh (i)", torch.tanh),
    "leaky-default": ("y = LeakyRelu (normalised)", lambda x: F.leaky_relu(x, 0.01)),
    "hard-sigmoid-default": ("y = HardSigmoid (normalised)", lambda x: (0.2 * x + 0.5).clamp(0, 1)),
    "clip-unbounded": ("c = Clip (normalised) y = Tanh (c)", torch.tanh),
    "sum-of-three": ("t = Tanh (normalised) y = Sum (normalised, t, normalised)", lambda x: x + x.tanh() + x),
    "slice-with-steps": ("y = Slice (normalised, one, eight, three, two)", lambda x: x[..., 1:8:2]),
    "padded-axes": ("p = Pad (normalised, pads, , axes) y = Tanh (p)", lambda x: F.pad(x, (1, 2)).tanh()),
    "gather-inner-axis": ("g = Gather <axis = 2> (normalised, table) y = Tanh (g)", lambda x: x[:, :, TABLE].tanh()),
    "local-response": (
        "y = LRN <size = 3, alpha = 0.9, beta = 0.6, bias = 1.5> (normalised)",
        nn.LocalResponseNorm(3, alpha=0.9, beta=0.6, k=1.5),
    ),
    "local-response-default": ("y = LRN <size = 5> (normalised)", nn.LocalResponseNorm(5)),
    "layer-norm-from-axis": (
        "y = LayerNormalization <axis = 2, epsilon = 0.1> (normalised, square)",
        lambda x: F.layer_norm(x, (8, 8), SQUARE, eps=0.1),
    ),
    "softmax-of-inner-axis": ("y = Softmax <axis = 2> (normalised)", lambda x: x.softmax(2)),
    "mish": ("y = Mish (normalised)", F.mish),
    "softsign": ("y = Softsign (normalised)", F.softsign),
    "thresholded-relu": ("y = ThresholdedRelu <alpha = 0.5> (normalised)", lambda x: x * (x > 0.5)),
    "selu-of-its-own": (
        "y = Selu <alpha = 1.5, gamma = 0.8> (normalised)",
        lambda x: 0.8 * torch.where(x > 0, x, 1.5 * torch.expm1(x)),
    ),
    "max-of-three": (
        "t = Tanh (normalised) m = Neg (normalised) y = Max (normalised, t, m)",
        lambda x: torch.stack([x, x.tanh(), -x]).amax(0),
    ),
    "min-of-one": ("m = Min (normalised) y = Tanh (m)", torch.tanh),
    "reduced-square-sum": ("y = ReduceSumSquare (normalised, axes)", lambda x: (x * x).sum(3)),
    "space-to-depth": (
        "d = SpaceToDepth <blocksize = 2> (normalised) y = Tanh (d)",
        lambda x: torch.cat([x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)], 1).tanh(),
    ),
    "depth-to-space": (
        "d = DepthToSpace <blocksize = 2> (normalised) y = Tanh (d)",
        lambda x: x.view(-1, 2, 2, 2, 8, 8).permute(0, 3, 4, 1, 5, 2).reshape(-1, 2, 16, 16).tanh(),
    ),
    "gather-nd": (
        "t = Transpose <perm = [1, 0, 2, 3]> (normalised) g = GatherND (t, points) "
        "y = Transpose <perm = [1, 0, 2, 3]> (g)",
        lambda x: x[:, [1, 5, 1]],
    ),
    "gather-scalar": ("g = Gather <axis = -1> (normalised, minus_two) y = Tanh (g)", lambda x: x[..., -2].tanh()),
    "gather-known-order": (
        "g = Gather <axis = 3> (normalised, backwards) t = Tanh (g) y = Mul (t, square)",
        lambda x: x.flip(3).tanh() * SQUARE,
    ),
    "scattered": (
        "t = Tanh (normalised) u = Slice (t, zero, one, three) size = Shape (u) at = Expand (places, size) "
        "w = ScatterElements <axis = 3> (normalised, at, u) y = Exp (w)",
        lambda x: torch.cat([x[..., :3], x[..., :1].tanh(), x[..., 4:]], 3).exp(),
    ),
    "slice-backwards": (
        "w = Slice (normalised, eight, minus_nine, three, minus_steps) y = Exp (w)",
        lambda x: x.flip(3)[..., ::2].exp(),
    ),
    "vector-on-the-right": ("y = MatMul (normalised, eight_values)", lambda x: x @ EIGHT),
    "vector-on-the-left": ("y = MatMul (eight_values, normalised)", lambda x: EIGHT @ x),
    "gelu-of-onnx-runtime": ("y = com.microsoft.Gelu (normalised)", F.gelu),
    "quick-gelu": ("y = com.microsoft.QuickGelu (normalised)", lambda x: x * torch.sigmoid(1.702 * x)),
    "global-average-pool": ("y = GlobalAveragePool (normalised)", lambda x: x.mean((2, 3))),
    "einsum-of-one": ('y = Einsum <equation = "abcd -> adcb"> (normalised)', lambda x: x.permute(0, 3, 2, 1)),
    "quantised": (
        "q = QuantizeLinear (normalised, tenth, zero_point) d = DequantizeLinear (q, tenth, zero_point) y = Exp (d)",
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.02, 3, -128, 127).exp(),
    ),
    "quantised-per-channel": (
        "q = QuantizeLinear <axis = 1> (normalised, scales, zero_points) "
        "d = DequantizeLinear <axis = 1> (q, scales, zero_points) y = Exp (d)",
        lambda x: torch.fake_quantize_per_channel_affine(
            x, SCALES, torch.zeros(8, dtype=torch.int32), 1, -128, 127
        ).exp(),
    ),
    "quantised-unsigned-default": (
        "q = QuantizeLinear (normalised, tenth) d = DequantizeLinear (q, tenth) y = Exp (d)",
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.02, 0, 0, 255).exp(),
    ),
    "gelu-reordered": (
        "u = Mul (normalised, root) e = Erf (u) a = Add (unit, e) h = Mul (half, normalised) y = Mul (a, h)",
        F.gelu,
    ),
    "not-quite-gelu": (
        "u = Mul (normalised, half) e = Erf (u) a = Add (unit, e) h = Mul (half, normalised) y = Mul (a, h)",
        lambda x: 0.5 * x * (1 + torch.erf(0.5 * x)),
    ),
}
CONSTANTS = {
    "kernel": KERNEL.numpy(),
    "matrix": MATRIX.numpy(),
    "table": TABLE.numpy(),
    "one": np.array([1]),
    "two": np.array([2]),
    "three": np.array([3]),
    "eight": np.array([8]),
    "pads": np.array([1, 2]),
    "axes": np.array([3]),
    "zero": np.array([0]),
    "minus_two": np.array(-2),
    "minus_steps": np.array([-2]),
    "minus_nine": np.array([-9]),
    "points": np.array([[1], [5], [1]]),
    "backwards": np.arange(8)[::-1].copy(),
    "places": np.array([3]),
    "eight_values": EIGHT.numpy(),
    "square": SQUARE.numpy(),
    "tenth": np.array(0.02, np.float32),
    "zero_point": np.array(3, np.int8),
    "scales": SCALES.numpy(),
    "zero_points": np.zeros(8, np.int8),
    "unit": np.array(1, np.float32),
    "half": np.array(0.5, np.float32),
    "root": np.array(0.5**0.5, np.float32),
}
# The operators of this file; the last two have a test of their own.
OPERATORS = {op for text, _ in FOREIGN.values() for op in re.findall(r"= ([\w.]+) [<(]", text)}
OPERATORS |= {"Gelu", "GroupNormalization"}


@pytest.mark.parametrize("name", FOREIGN)
def test_rule_agrees_with_autograd_on_foreign_graphs(name: str) -> None:
    """Attributes and spellings that only other exporters use have the gradient of the same thing in torch."""
    torch.manual_seed(0)
    text, function = FOREIGN[name]
    score = Weighted(Function(function), torch.randn(2, 8, 8, 8))
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]> '
        "agraph (float[N,8,8,8] normalised) => (float[N] confidence_logit) {"
        f"{text} flat = Flatten (y) s = MatMul (flat, weights) confidence_logit = Squeeze (s, one) }}"
    )
    used = {name for node in model.graph.node for name in node.input}
    constants = {**CONSTANTS, "weights": score.weights.detach().numpy()}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items() if k in used)
    assert_gradient_equals_autograds(score, model)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_node_of_a_later_opset(approximate: str) -> None:
    """From opset 20 on, GELU is one node, and its values in between are computed where the gradient needs them."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> agraph (float[N,4] normalised) => (float[N,4] confidence_logit) {'
        f'confidence_logit = Gelu <approximate = "{approximate}"> (normalised) }}'
    )
    x = torch.randn(3, 4)
    found = run(input_gradient(model), normalised=x.numpy())["gradient"]
    np.testing.assert_allclose(found, autograd(nn.GELU(approximate), x).numpy(), rtol=1e-4, atol=1e-6)


def test_group_normalization_node_of_a_later_opset() -> None:
    """From opset 21 on it is one node, with a scale for each channel."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> '
        "agraph (float[N,8,4,4] normalised) => (float[N,8,4,4] confidence_logit) "
        "<float[8] eight = {-1, -0.5, 0.5, 1, 2, 0, 1.5, 3}> "
        "{ g = GroupNormalization <num_groups = 2, epsilon = 0.01> (normalised, eight, eight) "
        "confidence_logit = Exp (g) }"
    )
    eight = torch.tensor([-1, -0.5, 0.5, 1, 2, 0, 1.5, 3])
    score = Function(lambda x: F.group_norm(x, 2, eight, eight, eps=0.01).exp())
    for x in (torch.randn(3, 8, 4, 4), torch.randn(1, 8, 4, 4) * 3):
        found = run(input_gradient(model), normalised=x.numpy())["gradient"]
        expected = autograd(score, x).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


REFUSED = {
    "is in training mode": "b, m, v = BatchNormalization <training_mode = 1> (normalised, c, c, c, c)",
    "its indices count by columns": "b = MaxPool <kernel_shape = [3, 3], storage_order = 1> (normalised)",
    "its kernel depends on the image": "b = Conv (normalised, normalised)",
    "is not constant": "d = ReduceMax <keepdims = 0> (normalised) b = Clip (normalised, d)",
    "its slope depends on the image": "b = PRelu (normalised, normalised)",
    "its scale or bias depends": (
        "r = ReduceMean <keepdims = 0> (normalised, zero) b = LayerNormalization <axis = 1> (normalised, r)"
    ),
    "sums one operand alone": 'b = Einsum <equation = "abcd -> ab"> (normalised)',
    "does not name all axes": 'b = Einsum <equation = "...d -> d..."> (normalised)',
    "its reduction is 'add'": (
        "z = Shape (normalised) i = ConstantOfShape (z) "
        'b = ScatterElements <reduction = "add"> (normalised, i, normalised)'
    ),
    r"it gathers from each image by itself \(batch_dims\)": "b = GatherND <batch_dims = 1> (normalised, rows)",
    "it works on quantised values": "q = QuantizeLinear (normalised, s) t = Transpose (q) b = DequantizeLinear (t, s)",
    "DynamicQuantizeLinear": "q, e, z = DynamicQuantizeLinear (normalised) b = DequantizeLinear (q, e, z)",
    "cannot differentiate If": (
        "r = ReduceMax <keepdims = 0> (normalised) z = Cast <to = 9> (r) b = If (z) <"
        "then_branch = yes () => (float[8,8,8,8] p) { p = Tanh (normalised) }, "
        "else_branch = no () => (float[8,8,8,8] p) { p = Exp (normalised) }>"
    ),
    "its mode is": 'b = Pad <mode = "reflect"> (normalised, pads4)',
}


@pytest.mark.parametrize("why", REFUSED)
def test_known_operator_in_an_unknown_form_is_refused(why: str) -> None:
    """A node that a rule does not cover is named, never differentiated wrongly."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> agraph (float[8,8,8,8] normalised) => (float[N] confidence_logit) {'
        f"{REFUSED[why]} confidence_logit = ReduceMean <keepdims = 0> (b) }}"
    )
    constants = {"c": np.ones(8, np.float32), "pads4": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "zero": np.array([0])}
    constants |= {"rows": np.zeros((8, 1), np.int64), "s": np.array(0.1, np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    with pytest.raises(NoRuleError, match=why):
        input_gradient(model)


# Graphs whose score depends on the image only through steps.
FLAT = {
    "Round": "r = Round (normalised) confidence_logit = ReduceMean <keepdims = 0> (r, rest)",
    "Floor": "r = Floor (normalised) confidence_logit = ReduceMean <keepdims = 0> (r, rest)",
    "Sign": "r = Sign (normalised) confidence_logit = ReduceMean <keepdims = 0> (r, rest)",
    "ArgMax": "a = ArgMax <axis = 1, keepdims = 0> (normalised) confidence_logit = Cast <to = 1> (a)",
    "Cast": (
        "i = Cast <to = 7> (normalised) f = Cast <to = 1> (i) confidence_logit = ReduceMean <keepdims = 0> (f, rest)"
    ),
}


@pytest.mark.parametrize("operator", FLAT)
def test_score_that_changes_in_steps_has_no_gradient(operator: str) -> None:
    """There is no direction to go, so there is no graph, and the operator is named."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> agraph (float[N,8] normalised) => (float[N] confidence_logit) '
        f"<int64[1] rest = {{1}}> {{ {FLAT[operator]} }}"
    )
    with pytest.raises(
        GradientError, match=rf"no gradient reaches .*: {operator} \(node .* constant almost everywhere"
    ):
        input_gradient(model)


def test_steps_beside_a_path_count_as_constant() -> None:
    """Where another path leads to the score, the gradient is that of the other path, as in torch."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> agraph (float[N,8] normalised) => (float[N] confidence_logit) '
        "<int64[1] rest = {1}> { a = ArgMax <axis = 1> (normalised) f = Cast <to = 1> (a) r = Round (normalised) "
        "p = Mul (normalised, r) q = Add (p, f) confidence_logit = ReduceSum <keepdims = 0> (q, rest) }"
    )
    x = torch.randn(4, 8) * 3
    np.testing.assert_array_equal(run(input_gradient(model), normalised=x.numpy())["gradient"], x.round().numpy())
