"""Weights between those that a fine-tuning started from and those that it ended with (WiSE-FT, arXiv:2109.01903).

Fine-tuning gains accuracy and loses some of what the pretrained features knew of everything else. Between the two there
are weights that keep most of both. How far to go is chosen by the loss on the validation images.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from training.networks import Classifier

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)

Measure = Callable[[Classifier], tuple[float, float]]  # accuracy and loss on the validation images


@dataclass(frozen=True)
class Blend:
    """Weights of which a share is of the end and the rest of the start."""

    share: float
    state: dict[str, Tensor]
    validation_accuracy: float
    validation_loss: float


def blends(start: dict[str, Tensor], end: Classifier, measure: Measure) -> Iterator[Blend]:
    """One for each share; batch-norm statistics are blended like weights, and counts stay those of the end."""
    network = copy.deepcopy(end)
    last = {name: value.clone() for name, value in end.state_dict().items()}
    for share in SHARES:
        state = {
            name: value.lerp(start[name].to(value), 1 - share) if value.is_floating_point() else value
            for name, value in last.items()
        }
        network.load_state_dict(state)
        yield Blend(share, state, *measure(network))
