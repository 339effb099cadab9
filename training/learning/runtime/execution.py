"""Where and how a network is trained: device, precision, memory layout, compilation. None of it is in the recipe.

The choices for CUDA follow PyTorch's documentation. None has been tried on a GPU; tests cover how they are made.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from training.errors import RecipeError
from training.learning.runtime.freed_memory import keep_freed_memory
from training.networks import Output

DeviceChoice = Literal["auto", "cuda", "cpu"]
Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True)
class Execution:
    """The chosen device and numerics."""

    device: torch.device
    bf16: bool  # forward and backward in bfloat16 where that is safe; the loss, λ and the weights stay fp32
    channels_last: bool
    compiled: bool

    @property
    def description(self) -> str:
        """As runs show and record it: "cuda, bf16, channels_last"."""
        extras = [("bf16", self.bf16), ("channels_last", self.channels_last), ("compiled", self.compiled)]
        return ", ".join([self.device.type, *(name for name, used in extras if used)])

    def prepare(self, network: nn.Module) -> None:
        """Moves the network to the device; call it before making the optimiser and the average."""
        network.to(self.device)
        if self.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
        if self.device.type == "cuda":
            _repeatable_cuda()
        else:
            keep_freed_memory()

    def faster(self, forward: nn.Module) -> Callable[[Tensor], Output]:
        """The network as each step calls it."""
        return torch.compile(forward) if self.compiled else forward


def choose_execution(
    device: DeviceChoice = "auto",
    precision: Precision = "auto",
    compiled: bool = False,
    *,
    local_rank: int = 0,
    cuda: bool | None = None,
    cuda_bf16: bool | None = None,
) -> Execution:
    """`auto` takes CUDA if it is available, and bfloat16 if the GPU supports it; `cuda` without a GPU fails.

    `cuda` and `cuda_bf16` say what the machine supports; if they are None, torch is asked.
    """
    has_cuda = torch.cuda.is_available() if cuda is None else cuda
    if device == "cuda" and not has_cuda:
        raise RecipeError("--device cuda: torch sees no CUDA device here. Use --device auto or cpu.")
    on_cuda = has_cuda and device != "cpu"
    if precision == "auto":
        supported = (torch.cuda.is_bf16_supported() if cuda_bf16 is None else cuda_bf16) if on_cuda else False
    else:
        supported = precision == "bf16"
    where = torch.device("cuda", local_rank) if on_cuda else torch.device("cpu")
    # On a CPU each network decides for itself: `compact` is channels_last.
    return Execution(where, bf16=supported, channels_last=on_cuda, compiled=compiled)


def faster_precision(execution: Execution, capabilities: Mapping[str, object] | None = None) -> str | None:
    """Advice for a user who trains in fp32 on a CPU that computes in bfloat16; None if there is nothing to gain.

    `auto` does not choose bfloat16 on a CPU: the weights would then depend on the kind of CPU.
    """
    if capabilities is None:
        capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch lack it
    able = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    if execution.bf16 or execution.device.type != "cpu" or not able:
        return None
    return "this CPU computes in bfloat16: --precision bf16 trains about 1.7 × as fast (measured with compact)"


def _repeatable_cuda() -> None:
    """Makes the same seed give the same weights on a GPU too, at a few percent of its speed."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
