"""What a run is, as run.json has it: two runs with the same identity on one machine end with the same weights."""

from dataclasses import asdict
from typing import Any

from torch import Tensor

from service.model.command_line import CommandLine
from training.data.splits import Splits
from training.learning.pretrained import Pretrained
from training.networks.weights import BodyWeights
from training.recipe import Recipe


def identity_of(
    recipe: Recipe,
    seed: int,
    splits: Splits,
    mean: Tensor,
    std: Tensor,
    weights: BodyWeights | None,
    pretrained: Pretrained | None,
    command: CommandLine | None,
) -> dict[str, Any]:
    """The recipe, the seed, the images and how they are divided, and the weights that training starts from."""
    return {
        **({} if command is None else {"command": command}),
        "recipe": recipe.model_dump(mode="json"),
        "seed": seed,
        "splits": {"fingerprint": splits.fingerprint, "sizes": splits.sizes},
        "label_names": list(splits.label_names),
        "mean": mean.tolist(),
        "std": std.tolist(),
        "image_size": splits.train.images.shape[1],
        **({} if weights is None else {"weights": asdict(weights)}),
        "init": pretrained
        and {"file": pretrained.file, "sha256": pretrained.sha256, "made_by": list(pretrained.made_by)},
    }
