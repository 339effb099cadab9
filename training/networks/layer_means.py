"""The mean of each channel of layers inside a network, watched while it runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class ShownLayer:
    """A tensor inside a body: what a module takes or gives, at one of its calls."""

    module: str  # its name within the body; "" is the body itself
    call: int  # from 0: one module may be an activation in several places
    is_input: bool
    channels: int
    channels_last: bool  # [N,…,C] instead of [N,C,…]


def channel_means(x: Tensor, channels_last: bool) -> Tensor:
    return x.flatten(1, -2).mean(1) if channels_last else x.flatten(2).mean(2)


class LayerMeans:
    """Hooks on a body that note the means of its layers between `watching` and its end."""

    def __init__(self, body: nn.Module, layers: Sequence[ShownLayer]) -> None:
        self.layers = tuple(layers)
        self._is_watching = False
        self._calls: dict[tuple[str, bool], int] = {}
        self._means: dict[ShownLayer, Tensor] = {}
        modules = dict(body.named_modules())
        for name, is_input in {(layer.module, layer.is_input): None for layer in self.layers}:
            if is_input:
                modules[name].register_forward_pre_hook(_Input(self, name))
            else:
                modules[name].register_forward_hook(_Given(self, name))

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._calls.clear()
        self._is_watching = True
        try:
            yield
        finally:
            self._is_watching = False
            self._means.clear()  # they hold on to everything that was computed for them

    def found(self) -> list[Tensor]:
        """In the order of the layers."""
        return [self._means[layer] for layer in self.layers]

    def note(self, module: str, is_input: bool, value: Tensor) -> None:
        if not self._is_watching:
            return
        call = self._calls.get((module, is_input), 0)
        self._calls[module, is_input] = call + 1
        for layer in self.layers:
            if (layer.module, layer.is_input, layer.call) == (module, is_input, call):
                self._means[layer] = channel_means(value, layer.channels_last)


# Objects and not closures: a copy of the network (its moving average) then has hooks that note in its own `LayerMeans`.
class _Input:
    def __init__(self, means: LayerMeans, module: str) -> None:
        self.means, self.module = means, module

    def __call__(self, _module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.means.note(self.module, True, inputs[0])


class _Given:
    def __init__(self, means: LayerMeans, module: str) -> None:
        self.means, self.module = means, module

    def __call__(self, _module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> None:
        self.means.note(self.module, False, output)
