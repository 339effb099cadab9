"""Each gradient rule alone, against torch autograd."""

from __future__ import annotations

import re
from functools import cache

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.training.command_line import REPOSITORY
from tests.training.graphs.gradient_reference import Function, Weighted, assert_gradient_equals_autograds, export
from tests.training.graphs.test_gradient_foreign import OPERATORS as IN_FOREIGN_GRAPHS
from training.graphs.gradient.rules import RULES


def settled_batch_norm(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    nn.init.uniform_(norm.weight, -1, 2)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.1, 3)
    return norm


def settled(norm: nn.Module) -> nn.Module:
    nn.init.uniform_(norm.weight, -1, 2)
    nn.init.normal_(norm.bias)
    return norm


def spelt_out_layer_norm(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.pow(2).mean(1, keepdim=True) + 1e-6).sqrt()


class Attention(nn.Module):
    """Two heads over 64 positions of 8 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = x.flatten(2).transpose(1, 2)
        return self.layer(positions, positions.tanh(), positions, need_weights=False)[0]


CONVOLUTIONS = {
    "transposed": lambda: nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
    "3x3": lambda: nn.Conv2d(8, 5, 3, padding=1),
    "2x2-unpadded": lambda: nn.Conv2d(8, 5, 2),
    "1x1": lambda: nn.Conv2d(8, 5, 1),
    "few-input-channels": lambda: nn.Sequential(nn.Conv2d(8, 3, 1), nn.Conv2d(3, 8, 3)),
    "stride-2": lambda: nn.Conv2d(8, 5, 3, stride=2, padding=1),
    "stride-2-on-odd-size": lambda: nn.Sequential(nn.Conv2d(8, 8, 2), nn.Conv2d(8, 5, 3, stride=2, padding=1)),
    "1x1-stride-2": lambda: nn.Conv2d(8, 5, 1, stride=2),
    "5x5-stride-3": lambda: nn.Conv2d(8, 5, 5, stride=3, padding=1),
    "oblong": lambda: nn.Conv2d(8, 5, (3, 2), stride=(1, 2), padding=(2, 0)),
    "dilated": lambda: nn.Conv2d(8, 5, 3, padding=2, dilation=2),
    "dilated-stride-2": lambda: nn.Conv2d(8, 5, 3, stride=2, dilation=2),
    "wide-padding": lambda: nn.Conv2d(8, 5, 2, padding=3),
    "grouped": lambda: nn.Conv2d(8, 12, 3, padding=1, groups=2),
    "grouped-stride-2": lambda: nn.Conv2d(8, 12, 3, padding=1, groups=2, stride=2),
    "depthwise": lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8),
    "depthwise-widening": lambda: nn.Conv2d(8, 16, 3, padding=1, groups=8),
    "depthwise-5x5-stride-2": lambda: nn.Conv2d(8, 8, 5, padding=2, groups=8, stride=2),
    "unequal-padding": lambda: nn.Sequential(nn.ZeroPad2d((1, 2, 0, 3)), nn.Conv2d(8, 5, 4)),
}
POOLS = {
    "max-2": lambda: nn.MaxPool2d(2),
    "max-2-on-odd-size": lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.MaxPool2d(2)),
    "max-3": lambda: nn.MaxPool2d(3),
    "max-oblong": lambda: nn.MaxPool2d((4, 2)),
    "max-of-all": lambda: nn.MaxPool2d(8),
    "max-overlapping": lambda: nn.MaxPool2d(3, stride=2, padding=1),
    "max-dilated": lambda: nn.MaxPool2d(2, stride=1, dilation=2),
    "max-apart": lambda: nn.MaxPool2d(2, stride=3),
    "max-ceil": lambda: nn.MaxPool2d(3, ceil_mode=True),
    "average-ceil": lambda: nn.AvgPool2d(3, stride=2, ceil_mode=True),
    "average-ceil-with-padding": lambda: nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
    "max-adaptive": lambda: nn.AdaptiveMaxPool2d(1),
    "amax": lambda: Function(lambda x: x.amax((2, 3))),
    "average-2": lambda: nn.AvgPool2d(2),
    "average-overlapping": lambda: nn.AvgPool2d(3, stride=2, padding=1),
    "average-without-padding": lambda: nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
    "average-rest-left-over": lambda: nn.AvgPool2d(3),
    "average-global": lambda: nn.AdaptiveAvgPool2d(1),
    "mean": lambda: Function(lambda x: x.mean((2, 3))),
    "mean-kept": lambda: Function(lambda x: x.mean((-1,), keepdim=True)),
    "sum": lambda: Function(lambda x: x.sum(1)),
    "amin": lambda: Function(lambda x: x.amin((1, 2), keepdim=True)),
    "length": lambda: Function(lambda x: torch.linalg.vector_norm(x.relu(), dim=1)),
    "absolute-sum": lambda: Function(lambda x: torch.linalg.vector_norm(x, 1, dim=(2, 3))),
    "log-sum-exp": lambda: Function(lambda x: x.logsumexp(1)),
}
ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky-relu": lambda: nn.LeakyReLU(0.2),
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
    "clamp-from-below": lambda: Function(lambda x: x.clamp(min=-0.3)),
    "hard-sigmoid": nn.Hardsigmoid,
    "hard-swish": nn.Hardswish,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
    "gelu-tanh": lambda: nn.GELU(approximate="tanh"),
    "erf": lambda: Function(torch.erf),
    "exp": lambda: Function(torch.exp),
    "sqrt": lambda: Function(lambda x: (x * x + 1).sqrt()),
    "power": lambda: Function(lambda x: x**3),
    "negative": lambda: Function(lambda x: -x),
    "dropout": nn.Dropout,
    "identity": nn.Identity,
    "batch-norm": lambda: settled_batch_norm(8),
    "elu": lambda: nn.ELU(0.7),
    "selu": nn.SELU,
    "celu": lambda: nn.CELU(0.7),
    "p-relu": lambda: nn.PReLU(8),
    "softsign": nn.Softsign,
    "mish": nn.Mish,
    "absolute": lambda: Function(torch.abs),
    "log": lambda: Function(lambda x: torch.log(x * x + 1)),
    "sine": lambda: Function(lambda x: x.sin() * (2 * x).cos()),
    "reciprocal": lambda: Function(lambda x: torch.reciprocal(x * x + 1)),
    "powers": lambda: Function(lambda x: (x * x + 0.1) ** torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 3.0, 1.5, 0.0])),
    "power-of-two-values": lambda: Function(lambda x: (x * x + 0.1) ** x.mean(1, keepdim=True)),
    "exponent": lambda: Function(lambda x: 2.5**x),
    "round-beside-a-path": lambda: Function(lambda x: x.round() * x + x.floor() + x.sign() - x.ceil()),
    "double-and-back": lambda: Function(lambda x: x.double().float()),
}
BROADCASTS = {
    "add-channels": lambda x: x + torch.linspace(-1, 1, 8).view(8, 1, 1),
    "add-constant-first": lambda x: 2.0 + x,
    "subtract": lambda x: x.mean(1, keepdim=True) - x,
    "multiply-per-channel": lambda x: x * x.mean((2, 3), keepdim=True),
    "multiply-by-lower-rank": lambda x: (x.mean(1) * torch.linspace(-1, 1, 4).view(4, 1, 1, 1)).transpose(0, 1).tanh(),
    "divide": lambda x: x / (2 + x.mean(1, keepdim=True) ** 2),
    "divide-scalar": lambda x: 3 / (4 + x * x),
    "minimum": lambda x: torch.minimum(x, x.flip(1).contiguous()),
    "maximum": lambda x: torch.maximum(x, x.mean((1, 2), keepdim=True)),
    "where": lambda x: torch.where(x > 0.5, x * x, x.mean((2, 3), keepdim=True).exp()),
    "where-one-side-is-infinite": lambda x: torch.where(x > 9, (x - x).reciprocal(), x.tanh()),
    "used-three-times": lambda x: x * torch.sigmoid(x) + x,
}
SHAPES = {
    "flatten": lambda x: x.flatten(1) * torch.linspace(-1, 1, 8 * 8 * 8),
    "reshape": lambda x: x.reshape(-1, 4, 16, 8).tanh(),
    "transpose": lambda x: x.permute(0, 2, 3, 1) * torch.linspace(-1, 1, 8),
    "squeeze": lambda x: x[:, :1].squeeze(1).tanh(),
    "unsqueeze": lambda x: (x.unsqueeze(1) * torch.ones(1, 2, 1, 1, 1)).tanh(),
    "concat": lambda x: torch.cat([x, x.relu(), x.tanh()], 1),
    "split": lambda x: x.split([3, 5], 1)[1].tanh(),
    "chunk": lambda x: torch.mul(*x.chunk(2, 1)),
    "slice": lambda x: x[:, 2:5, :, 1:-1].tanh(),
    "one-channel": lambda x: x[:, 3].tanh(),
    "chosen-channels": lambda x: x[:, [6, 1, 1]].tanh(),
    "expand": lambda x: x[:, :1].expand(-1, 4, -1, -1).tanh() * torch.linspace(-1, 1, 4).view(4, 1, 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3)).tanh(),
    "crop-by-padding": lambda x: F.pad(x, (1, -2, -1, 3)).tanh(),
    "slice-with-steps": lambda x: torch.cat([x[:, 1::2, ::3], x[:, ::2, 2:8:3, :].tanh()[:, :, [0, 1, 1]]], 1),
    "rolled": lambda x: (x.roll((2, -3), (2, 3)) * torch.linspace(-1, 1, 8)).tanh(),
    "windows": lambda x: x.view(-1, 8, 2, 4, 2, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, 8).softmax(1),
    "first-of-axis": lambda x: x.flatten(2)[..., -1].tanh(),
    "permuted-channels": lambda x: x[:, [6, 1, 0, 2, 7, 5, 4, 3]] * torch.linspace(-1, 1, 8),
    "repeated": lambda x: x[:, :2].repeat(1, 2, 1, 3) * torch.linspace(-1, 1, 24),
    "gather-elements": lambda x: x.gather(2, torch.tensor([0, 5, 5]).view(1, 1, 3, 1).expand(x.shape[0], 8, 3, 8)),
    "overwritten": lambda x: x.index_put((torch.tensor([0]), torch.tensor([2, 3])), x[0, :2].tanh()).exp(),
    "pixel-shuffle": lambda x: F.pixel_shuffle(x, 2).tanh(),
    "pixel-unshuffle": lambda x: F.pixel_unshuffle(x, 2).tanh(),
}
PRODUCTS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(512, 7)),
    "linear-without-bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(512, 7, bias=False)),
    "linear-on-last-axis": lambda: nn.Linear(8, 7),
    "matmul-of-two-values": lambda: Function(lambda x: x @ x.transpose(2, 3).tanh()),
    "matmul-repeated": lambda: Function(lambda x: x.mean(1, keepdim=True) @ x.tanh()),
    "matmul-lower-rank": lambda: Function(lambda x: x @ x.mean(1).unsqueeze(1).exp()),
    "attention": lambda: Attention(),
    "einsum": lambda: Function(lambda x: torch.einsum("nchw,nchv->nchwv", x, x.tanh()).flatten(3)),
    "einsum-summed": lambda: Function(lambda x: torch.einsum("nchw,ndhw,cd->nch", x, x.tanh(), torch.ones(8, 8))),
    "matmul-from-the-left": lambda: Function(lambda x: torch.linspace(-1, 1, 24).view(3, 8) @ x),
}
NORMALISATIONS = {
    "softmax": lambda: nn.Softmax(1),
    "log-softmax": lambda: nn.LogSoftmax(-1),
    "layer-norm": lambda: settled(nn.LayerNorm(8)),
    "layer-norm-of-two-axes": lambda: settled(nn.LayerNorm((8, 8))),
    "layer-norm-spelt-out": lambda: Function(spelt_out_layer_norm),
    "group-norm": lambda: settled(nn.GroupNorm(4, 8)),
    "instance-norm": lambda: settled(nn.InstanceNorm2d(8, affine=True)),
    "normalised-length": lambda: Function(lambda x: F.normalize(x, dim=1)),
}
LAYERS = {
    **NORMALISATIONS,
    **CONVOLUTIONS,
    **POOLS,
    **ACTIVATIONS,
    **{name: lambda f=f: Function(f) for name, f in {**BROADCASTS, **SHAPES}.items()},
    **PRODUCTS,
}


@cache
def exported(name: str) -> tuple[Weighted, onnx.ModelProto]:
    torch.manual_seed(0)
    example = torch.randn(2, 8, 8, 8)
    score = Weighted(LAYERS[name](), example)
    return score, export(score, example, ["confidence_logit"])


@pytest.mark.parametrize("name", LAYERS)
def test_rule_agrees_with_autograd(name: str) -> None:
    """A layer's gradient in ONNX is torch's gradient, also where values are tied."""
    assert_gradient_equals_autograds(*exported(name))


def test_every_rule_is_tested() -> None:
    """Every operator that has a rule is used by the layers above, or by the test of foreign graphs."""
    used = {node.op_type for name in LAYERS for node in exported(name)[1].graph.node}
    assert set(RULES) - used - IN_FOREIGN_GRAPHS == set()


def test_the_documentation_lists_every_rule() -> None:
    """docs/architecture.md names exactly the operators that have a rule."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    listed = text.partition("<!-- operators with a gradient rule -->")[2].partition("<!-- end -->")[0]
    assert set(re.findall(r"`([\w.]+)`", listed)) == set(RULES)
