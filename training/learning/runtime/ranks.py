"""Several processes that train one network (torchrun): the rank of this one, and sums over all of them."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Ranks:
    """This process among the `world` processes that train together."""

    rank: int = 0
    world: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes checkpoints and prints."""
        return self.rank == 0

    def total(self, values: list[float], device: torch.device) -> list[float]:
        """Sums over all processes, in double precision."""
        if self.world == 1:
            return values
        summed = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(summed)
        return summed.tolist()

    def shared(self, network: nn.Module, device: torch.device) -> nn.Module:
        """The network as this process must call it, so that gradients are averaged over all ranks."""
        if self.world == 1:
            return network
        return DistributedDataParallel(network, device_ids=[device.index] if device.type == "cuda" else None)

    def wait(self) -> None:
        """Returns when all ranks have called it."""
        if self.world > 1:
            dist.barrier()


def local_rank() -> int:
    """The number of this process on its machine, set by torchrun."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Joins the processes that torchrun started; without torchrun this process trains alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), world)
        dist.barrier()  # the main rank writes last, and torchrun would end it if another rank failed meanwhile
    finally:
        # DistributedDataParallel is in a cycle of references and holds the group. If its threads outlive the
        # interpreter, they abort the process.
        gc.collect()
        dist.destroy_process_group()
