"""Gradient rules on graphs that other tools than torch write: attributes, spellings and operators of their own."""

from __future__ import annotations

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
from training.graphs.gradient import NoRuleError

KERNEL, MATRIX = torch.randn(5, 8, 3, 3), torch.randn(512, 7) / 25
TABLE = torch.tensor([[1, 5, 1], [0, 7, 2]])

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
    "unit": np.array(1, np.float32),
    "half": np.array(0.5, np.float32),
    "root": np.array(0.5**0.5, np.float32),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_rule_agrees_with_autograd_on_foreign_graphs(name: str) -> None:
    """Attributes and spellings that only other exporters use have the gradient of the same thing in torch."""
    torch.manual_seed(0)
    text, function = FOREIGN[name]
    score = Weighted(Function(function), torch.randn(2, 8, 8, 8))
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> agraph (float[N,8,8,8] normalised) => (float[N] confidence_logit) {'
        f"{text} flat = Flatten (y) s = MatMul (flat, weights) confidence_logit = Squeeze (s, one) }}"
    )
    used = {name for node in model.graph.node for name in node.input}
    constants = {**CONSTANTS, "weights": score.weights.detach().numpy()}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items() if k in used)
    assert_gradient_equals_autograds(score, model)


def test_gelu_node_of_a_later_opset() -> None:
    """From opset 20 on, GELU is one node, and its values in between are computed where the gradient needs them."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> agraph (float[N,4] normalised) => (float[N,4] confidence_logit) {'
        "confidence_logit = Gelu (normalised) }"
    )
    x = torch.randn(3, 4)
    found = run(input_gradient(model), normalised=x.numpy())["gradient"]
    np.testing.assert_allclose(found, autograd(nn.GELU(), x).numpy(), rtol=1e-4, atol=1e-6)


REFUSED = {
    "is in training mode": "b, m, v = BatchNormalization <training_mode = 1> (normalised, c, c, c, c)",
    "its indices count by columns": "b = MaxPool <kernel_shape = [3, 3], storage_order = 1> (normalised)",
    "its kernel depends on the image": "b = Conv (normalised, normalised)",
    "is not constant": "b = Pow (normalised, normalised)",
    "its exponents are several": "b = Pow (normalised, c)",
    "its mode is": 'b = Pad <mode = "reflect"> (normalised, pads4)',
    "one of its operands is a vector": "b = MatMul (normalised, c)",
}


@pytest.mark.parametrize("why", REFUSED)
def test_known_operator_in_an_unknown_form_is_refused(why: str) -> None:
    """A node that a rule does not cover is named, never differentiated wrongly."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> agraph (float[8,8,8,8] normalised) => (float[N] confidence_logit) {'
        f"{REFUSED[why]} confidence_logit = ReduceMean <keepdims = 0> (b) }}"
    )
    constants = {"c": np.ones(8, np.float32), "pads4": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    with pytest.raises(NoRuleError, match=why):
        input_gradient(model)
