"""What the tests of a branch share: small networks of every kind, and what a branch on their layers reads in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

import training.torchvision_shim  # noqa: F401 (before torchvision)

# isort: split
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

from tests.training.graphs.gradient_reference import export
from training.data.normalise import normalise
from training.graphs.branch import Branch
from training.graphs.image_input import with_image_input
from training.networks import compact
from training.networks.densenet import densenet_bc
from training.networks.vgg import vgg13
from training.networks.wideresnet import wide_resnet

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
SIZE, CLASSES = 32, 5
LARGE = 10_000  # weights of networks in their real sizes are as they should be
Seen = tuple[nn.Module, str]  # what the branch reads: the "output" of a module, or its "input"


def channels_first(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def channels_last(x: Tensor) -> Tensor:
    return x.flatten(1, -2).mean(1)


def activated(x: Tensor) -> Tensor:
    return x.relu().mean((2, 3))


@dataclass(frozen=True)
class Kind:
    """A network, its last linear layer, its layers as torch's modules see them, and what is read of each."""

    build: Callable[[], nn.Module]
    head: Callable[[Any], nn.Module]
    layers: Callable[[Any], list[nn.Module] | list[Seen]]
    mean: Callable[[Tensor], Tensor] = channels_first


def activations(net: Any) -> list[nn.Module]:
    return [module for module in net.body if isinstance(module, nn.ReLU | nn.GELU)]


def both_sums(blocks: Iterable[Any], second_norm: str) -> list[Seen]:
    """The sum after the attention is what the second norm of a block reads; the sum after the MLP is its output."""
    return [seen for block in blocks for seen in ((getattr(block, second_norm), "input"), (block, "output"))]


def mobilenet() -> nn.Module:
    block = partial(InvertedResidualConfig, dilation=1, width_mult=1.0)
    settings = [
        block(16, 3, 24, 16, True, "RE", stride=1),  # with a shortcut
        block(16, 3, 32, 24, True, "HS", stride=2),  # without
        block(24, 3, 40, 24, False, "HS", stride=1),
    ]
    return MobileNetV3(settings, 32, num_classes=CLASSES)


KINDS: dict[str, Kind] = {
    "compact": Kind(lambda: compact(CLASSES, SIZE, (16, 24, 32)), lambda net: net.head, activations),
    "vgg13": Kind(lambda: vgg13(CLASSES, SIZE, (8, 8, 16, 16, 24)), lambda net: net.head, activations),
    # The activations after the sums; the last one's means are the features.
    "wide resnet": Kind(
        lambda: wide_resnet(10, 1, CLASSES, SIZE),
        lambda net: net.head,
        lambda net: [net.body[2].norm1, net.body[3].norm1],
        activated,
    ),
    # The activations of the transitions, which see all channels of the block before.
    "densenet": Kind(
        lambda: densenet_bc(CLASSES, SIZE, depth=16, growth=8),
        lambda net: net.head,
        lambda net: [net.body[4], net.body[10]],
    ),
    "resnet": Kind(
        lambda: ResNet(BasicBlock, [1, 2, 1, 1], num_classes=CLASSES),
        lambda net: net.fc,
        lambda net: [net.relu, net.layer1[0], net.layer2[0], net.layer2[1], net.layer3[0]],
    ),
    "mobilenet": Kind(
        mobilenet,
        lambda net: net.classifier[3],
        # Of the block without a shortcut both activations.
        lambda net: [*net.features[:2], *net.features[2].block[:2], *net.features[3:]],
    ),
    "convnext": Kind(
        lambda: ConvNeXt([CNBlockConfig(8, 12, 1), CNBlockConfig(12, None, 2)], num_classes=CLASSES),
        lambda net: net.classifier[2],
        lambda net: [*net.features[1], *net.features[3]],
    ),
    "vit": Kind(
        lambda: VisionTransformer(SIZE, 8, 2, 2, 16, 32, num_classes=CLASSES),
        lambda net: net.heads.head,
        lambda net: both_sums(net.encoder.layers, "ln_2"),
        channels_last,
    ),
    "swin": Kind(
        lambda: SwinTransformer([4, 4], 8, [2, 1], [2, 2], [4, 4], num_classes=CLASSES),
        lambda net: net.head,
        lambda net: both_sums([*net.features[1], *net.features[3]], "norm2"),
        channels_last,
    ),
}


class Torch(nn.Module):
    """A network as its exporter sees it; `read` gives what a branch on its layers reads, by hooks on its modules."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = kind.build().eval()
        self.kind = kind
        settle(self.network)

    def forward(self, x: Tensor) -> Tensor:
        found = self.network(x)
        return found[0] if isinstance(found, tuple) else found  # ours also return the logit of a branch

    def read(self, x: Tensor, count: int | None = None) -> Tensor:
        """`count`: so many of the layers, evenly over the depth."""
        seen = [layer if isinstance(layer, tuple) else (layer, "output") for layer in self.kind.layers(self.network)]
        if count is not None and count < len(seen):
            seen = [seen[i * (len(seen) - 1) // (count - 1)] for i in range(count)]
        seen = [(self.kind.head(self.network), "input"), *seen]
        tensors: dict[int, Tensor] = {}
        handles = [
            module.register_forward_hook(
                lambda _, given, made, place=place, side=side: tensors.update(
                    {place: made if side == "output" else given[0]}
                )
            )
            for place, (module, side) in enumerate(seen)
        ]
        self(x)
        for handle in handles:
            handle.remove()
        return torch.cat([tensors[0], *(self.kind.mean(tensors[i]) for i in range(1, len(seen)))], 1)


class ConfidenceLogit(nn.Module):
    """The branch in torch, in float64: what autograd differentiates."""

    def __init__(self, network: Torch, branch: Branch, count: int | None = None) -> None:
        super().__init__()
        self.network, self.branch, self.count = network.double(), branch, count

    def forward(self, x: Tensor) -> Tensor:
        z = (self.network.read(x, self.count) - torch.from_numpy(self.branch.offset)) * torch.from_numpy(
            self.branch.scale
        )
        for place, (weight, bias) in enumerate(self.branch.layers):
            if place:
                z = nn.functional.gelu(z) if self.branch.activation == "gelu" else z.relu()
            z = z @ torch.from_numpy(weight).double() + torch.from_numpy(bias)
        return z.squeeze(1)


def settle(network: nn.Module) -> None:
    """Fresh networks answer nearly the same to every image: batch norms get statistics, small weights become larger."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, std=0.2)
    with torch.no_grad():
        if norms:
            network.train()(normalised(noise(32, seed=1)))
            network.eval()
            return
        for parameter in network.parameters():
            if (
                parameter.numel() < LARGE and parameter.abs().max() < 0.2
            ):  # heads are zero or small and layer scales tiny: they hide a gradient
                nn.init.normal_(parameter, std=0.2)


def normalised(images: np.ndarray) -> Tensor:
    return normalise(torch.from_numpy(images), torch.tensor(MEAN), torch.tensor(STD))


def noise(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE, SIZE, 3), dtype=np.uint8)


def forward_graph(network: Torch, *, dynamo: bool = False) -> onnx.ModelProto:
    return with_image_input(export(network, torch.zeros(2, 3, SIZE, SIZE), ["logits"], dynamo=dynamo), MEAN, STD)


def random_branch(branch_input: np.ndarray, hidden: tuple[int, ...] = (16, 8), activation: str = "relu") -> Branch:
    """Standardises what it reads, as a fitted branch does."""
    random = np.random.default_rng(0)
    sizes = [branch_input.shape[1], *hidden, 1]
    layers = tuple(
        (
            random.normal(size=pair).astype(np.float32) / np.float32(pair[0] ** 0.5),
            random.normal(size=pair[1]).astype(np.float32),
        )
        for pair in pairwise(sizes)
    )
    scale = 1 / (branch_input.std(axis=0) + 0.01)
    return Branch(branch_input.mean(axis=0), scale, layers, activation)  # type: ignore[arg-type]
