"""A run that fits a head. It takes minutes, most of them for the features, which its folder keeps.

A run that was stopped goes on with the features it has; the same command on a finished one says what came out.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import nn

from service.model.command_line import CommandLine
from training.data.folder import FolderImages
from training.data.normalise import normalisation_for
from training.data.splits import Images, LabelledImages, Splits
from training.errors import RecipeError
from training.learning.balance import class_weights
from training.learning.fresh_network import fresh_network
from training.learning.head.fit import Examples, Fitted, fitted_heads
from training.learning.identity import identity_of
from training.learning.pretrained import load_pretrained
from training.learning.run_folder import RunFolder
from training.networks import Classifier
from training.networks.weights import load_weights
from training.recipe import Recipe

# The features [N,D] of these images; the text says what they are for.
Features = Callable[[Images | FolderImages, str], NDArray[np.float32]]
# For a network's body, which expects mean and std, and images of this side.
FeaturesOf = Callable[[Classifier, list[float], list[float], int], Features]


class HeadRun:
    """Fits the head of one network."""

    def __init__(
        self,
        recipe: Recipe,
        splits: Splits,
        seed: int,
        folder: Path,
        *,
        features_of: FeaturesOf,
        init: Path | None = None,
        command: CommandLine | None = None,
    ) -> None:
        if recipe.network.weights is None and init is None:
            raise RecipeError(
                "optimiser.trains=head keeps the weights of the body, and nothing says where they come from: set "
                "network.weights (--weights pretrained), or train all of the network (--train all)."
            )
        self.recipe, self.splits, self.features_of = recipe, splits, features_of
        self.folder = RunFolder(folder)
        self.mean, self.std = normalisation_for(recipe.data, splits)
        self.network = fresh_network(recipe, splits, seed, self.mean, self.std)
        self.head = _linear(self.network, recipe)
        named = recipe.network.weights
        self.weights = load_weights(self.network, recipe.network.name, named) if named else None
        self.pretrained = load_pretrained(self.network, init) if init else None
        self.identity = identity_of(recipe, seed, splits, self.mean, self.std, self.weights, self.pretrained, command)

    def fit(self, console: Console) -> None:
        """Features, the head, the checkpoint; each is shown."""
        self.folder.claim(self.identity)
        state = self.folder.load(torch.device("cpu"))
        if state is None:
            self.folder.forget_after(0)
            started = time.monotonic()
            for loaded in (self.weights, self.pretrained):
                if loaded is not None:
                    _say(console, loaded.describe())
            train, validation = (self._examples(part) for part in ("train", "validation"))
            _say(
                console, f"features: {train.features.shape[1]} of each image, after {time.monotonic() - started:.0f} s"
            )
            best = self._best(train, validation, console)
            self._finish(best, time.monotonic() - started)
        result = self.folder.result()
        _say(
            console,
            f"done in {result['seconds']:.0f} s: validation accuracy {result['validation_accuracy']:.2%} "
            f"(n={len(self.splits.validation)})",
        )

    def _examples(self, part: str) -> Examples:
        held: LabelledImages = getattr(self.splits, part)
        name = f"features-{part}.npy"
        features = self.folder.array(name)
        if features is None or len(features) != len(held):
            if not hasattr(self, "_features"):
                size = self.splits.input.width
                self._features = self.features_of(self.network, self.mean.tolist(), self.std.tolist(), size)
            features = self._features(held.images, part)
            self.folder.keep_array(name, features)
        return Examples(torch.from_numpy(features), torch.from_numpy(held.labels))

    def _best(self, train: Examples, validation: Examples, console: Console) -> Fitted:
        classes = len(self.splits.label_names)
        balanced = self.recipe.optimiser.balance != "none"
        weights = class_weights(self.splits.train.labels, classes) if balanced else torch.ones(classes)
        best: Fitted | None = None
        for found in fitted_heads(train, validation, weights):
            record = {name: value for name, value in asdict(found).items() if name not in ("weight", "bias")}
            self.folder.append({"kind": "head", "step": 1} | record)
            _say(
                console,
                f"L2 {found.penalty:g}: train {found.train_accuracy:.2%}, validation {found.validation_accuracy:.2%}, "
                f"loss {found.validation_loss:.3f}",
            )
            if best is None or found.validation_loss < best.validation_loss:
                best = found
        assert best is not None  # there is a strongest penalty
        _say(console, f"L2 {best.penalty:g} has the smallest validation loss")
        return best

    def _finish(self, best: Fitted, seconds: float) -> None:
        with torch.no_grad():
            self.head.weight.copy_(best.weight)
            self.head.bias.copy_(best.bias)
        state: dict[str, Any] = {"network": self.network.state_dict(), "averaged": None, "step": 1}
        result = {
            "steps": 1,
            "seconds": round(seconds, 1),
            "validation_accuracy": best.validation_accuracy,
            "validation_loss": best.validation_loss,
            "penalty": best.penalty,
        }
        self.folder.write_result(result)
        self.folder.save(state | {"seconds": seconds, "execution": "cpu"})


def _linear(network: Classifier, recipe: Recipe) -> nn.Linear:
    if isinstance(network.head, nn.Linear) and network.head.bias is not None:
        return network.head
    raise RecipeError(
        f"optimiser.trains=head needs a network that ends in one linear layer with a bias; '{recipe.network.name}' "
        f"does not. Train all of it: --train all."
    )


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
