"""`--init`: a network's weights with its head, from a file or the checkpoint of another run, and what made them."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.data.splits import Splits
from training.errors import RecipeError
from training.networks import Classifier
from training.networks.state_files import read_state_file
from training.networks.state_names import match_names


@dataclass(frozen=True)
class Pretrained:
    """What was loaded from a file, tensor by tensor."""

    file: str
    sha256: str
    taken: tuple[str, ...]
    other_shape: tuple[str, ...]  # "name: shape here, shape in the file"
    fresh: tuple[str, ...]  # in this network, not in the file
    unused: tuple[str, ...]  # in the file, not in this network
    head: str  # whether the head was taken, and why not
    origin: "Origin | None" = None  # only if the file is the checkpoint of a run

    @property
    def made_by(self) -> tuple[str, ...]:
        """The commands that made the weights, as far as they are known."""
        return () if self.origin is None else self.origin.made_by

    def describe(self) -> str:
        """A few lines for the terminal."""
        lines = [f"{self.file}: {len(self.taken)} tensors taken ({_shortened(self.taken)})"]
        for what, names in (
            ("skipped for their shape", self.other_shape),
            ("not in the file, stay fresh", self.fresh),
            ("in the file, not in this network", self.unused),
        ):
            if names:
                lines.append(f"  {len(names)} {what}: {_shortened(names)}")
        lines.append(f"  {self.head}")
        return "\n".join(lines)


def _shortened(names: tuple[str, ...], shown: int = 6) -> str:
    return ", ".join(names[:shown]) + (f" … {names[-1]}" if len(names) > shown else "")


def load_pretrained(network: Classifier, path: Path) -> Pretrained:
    """Copies every tensor that fits by name and shape, the head's too, from a file of weights or a run's checkpoint."""
    content = read_state_file(path, "--init")
    match = match_names(network, content)
    ours = network.state_dict()
    taken, other_shape = {}, []
    for name, source in match.items():
        if content[source].shape != ours[name].shape:
            other_shape.append(f"{name}: {list(ours[name].shape)} here, {list(content[source].shape)} in the file")
        else:
            taken[name] = content[source]
    if not taken:
        raise RecipeError(
            f"--init {path}: none of its {len(content)} tensors fits this network. It begins with "
            f"{_shortened(tuple(content), 3)}; the network with {_shortened(tuple(ours), 3)}."
        )
    network.load_state_dict(ours | taken)
    used = set(match.values())
    return Pretrained(
        file=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        taken=tuple(taken),
        other_shape=tuple(other_shape),
        fresh=tuple(name for name in ours if name not in match),
        unused=tuple(name for name in content if name not in used),
        head=_of_head(network, content, match),
        origin=_origin(path),
    )


def _of_head(network: Classifier, content: dict[str, Tensor], match: dict[str, str]) -> str:
    """Whether the class head was taken, and if not, why."""
    last = [name for name in network.state_dict() if name.startswith("head.")][-1]
    classes = len(network.state_dict()[last])
    if last not in match:
        return f"the head stays fresh: the file has none that reads {network.feature_width} features"
    source = match[last]
    if len(content[source]) != classes:
        return f"the head stays fresh: {source} is of {len(content[source])} classes, here are {classes}"
    return f"the head is {source.rpartition('.')[0]}: its {classes} classes must be in the order of the labels here"


@dataclass(frozen=True)
class Origin:
    """The run that wrote a checkpoint."""

    made_by: tuple[str, ...]  # the commands that led to it
    trained_on: str  # the fingerprint of its images and splits
    finished: bool


def _origin(path: Path) -> Origin | None:
    record = path.parent / "run.json"
    if path.name != "checkpoint.pt" or not record.is_file():
        return None
    identity = json.loads(record.read_text())
    finished = (path.parent / "result.json").is_file()
    state = torch.load(path, map_location="cpu", weights_only=True)
    return Origin(commands_of(identity, state), identity["splits"]["fingerprint"], finished)


def commands_of(identity: dict[str, Any], checkpoint: dict[str, Any]) -> tuple[str, ...]:
    """The command of a run, after those of the runs whose weights it started from.

    Runs of earlier versions did not keep it: then it is put together, and their folders are called RUN1, RUN2 …
    """
    earlier = tuple((identity.get("init") or {}).get("made_by", ()))
    if identity.get("command") is not None:
        return (*earlier, identity["command"])
    start = f" --init RUN{len(earlier)}/checkpoint.pt" if earlier else ""
    # bfloat16 is the default on a GPU that supports it. On a CPU it was requested, and the weights depend on it.
    precision = " --precision bf16" if checkpoint.get("execution", "cpu").startswith("cpu, bf16") else ""
    name, seed = identity["recipe"]["name"], identity["seed"]
    return (*earlier, f"confgate-train fit {name} --seed {seed}{start}{precision} --out RUN{len(earlier) + 1}")


def keep_classifier(network: Classifier, pretrained: Pretrained | None, splits: Splits) -> None:
    """Freezes the classifier, so that only the branch learns.

    Fails unless every weight of the classifier comes from a file. If that file is of a run, the run must be finished
    and have the same splits: otherwise the classifier may have been trained on images that evaluate the branch.
    """
    if pretrained is None:
        raise RecipeError(
            "optimiser.trains=branch needs a classifier that is trained already: --init RUN/checkpoint.pt, of a run "
            "with the same network."
        )
    missing = [name for name in (*pretrained.fresh, *pretrained.other_shape) if not name.startswith("branch.")]
    if missing:
        raise RecipeError(
            f"--init {pretrained.file} is not of the same network, and optimiser.trains=branch would leave these "
            f"weights random: {_shortened(tuple(missing))}."
        )
    origin = pretrained.origin
    if origin is not None and not origin.finished:
        raise RecipeError(
            f"--init {pretrained.file} is of a run that is not finished, and its classifier would stay half trained. "
            f"Run the 'fit' command of that run again first."
        )
    if origin is not None and origin.trained_on not in (splits.fingerprint, splits.earlier):
        raise RecipeError(
            f"--init {pretrained.file} is of a run whose images were divided otherwise (fingerprint "
            f"{origin.trained_on}, here {splits.fingerprint}): it may have learnt from calibration images of this "
            f"one. Use the data and data.split_seed of that run."
        )
    for part in (network.body, network.head):
        part.requires_grad_(False)
