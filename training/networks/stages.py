"""The stages of a body, from the image to the features, for learning rates that differ between them."""

from collections.abc import Iterator

from torch import nn


def stages_of(body: nn.Module) -> list[list[nn.Parameter]]:
    """Every parameter of the body in exactly one stage, in the order in which the network names its parts.

    A part that is a plain chain of parts, or holds more than half of the parameters, counts as those parts. What has
    no part of its own, such as a transformer's position embeddings, and a norm before any weights belong to the first
    stage; any other norm belongs to the stage before it.
    """
    half = _size(body) / 2
    stages: list[list[nn.Parameter]] = [[]]
    for part in _parts(body, half, chains=True):
        parameters = list(part.parameters())
        begun = any(parameter.ndim > 1 for parameter in stages[-1])
        if begun and any(parameter.ndim > 1 for parameter in parameters):
            stages.append([])
        stages[-1] += parameters
    placed = {id(parameter) for stage in stages for parameter in stage}
    stages[0] += [parameter for parameter in body.parameters() if id(parameter) not in placed]
    return stages


def _parts(module: nn.Module, half: float, chains: bool) -> Iterator[nn.Module]:
    for child in module.children():
        chain = chains and type(child) in (nn.Sequential, nn.ModuleList)
        if list(child.children()) and (chain or _size(child) > half):
            # A chain within a chain is a stage: the blocks of one resolution learn at one rate.
            yield from _parts(child, half, chains=not chain and chains)
        elif _size(child):
            yield child


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
