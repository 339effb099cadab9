"""`--init`: weights from a file (a state dict, or the checkpoint of another run), and the commands that made them."""

import hashlib
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.data.splits import Splits
from training.errors import RecipeError
from training.networks import Classifier


@dataclass(frozen=True)
class Pretrained:
    """What was loaded from a file, tensor by tensor."""

    file: str
    sha256: str
    taken: tuple[str, ...]
    other_shape: tuple[str, ...]  # "name: shape here, shape in the file"
    fresh: tuple[str, ...]  # in this network, not in the file
    unused: tuple[str, ...]  # in the file, not in this network
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
        return "\n".join(lines)


def _shortened(names: tuple[str, ...], shown: int = 6) -> str:
    return ", ".join(names[:shown]) + (f" … {names[-1]}" if len(names) > shown else "")


def load_pretrained(network: Classifier, path: Path) -> Pretrained:
    """Copies every tensor that fits by name and shape from a state dict, or from the checkpoint of another run."""
    content = _read_state(path)
    ours = network.state_dict()
    taken, other_shape, fresh = {}, [], []
    used = set()
    for name, tensor in ours.items():
        # A plain network's "conv1.weight" is our "body.conv1.weight": the body is the network without its head.
        source = next((key for key in (name, name.removeprefix("body.")) if key in content), None)
        if source is None:
            fresh.append(name)
            continue
        used.add(source)
        if content[source].shape != tensor.shape:
            other_shape.append(f"{name}: {list(tensor.shape)} here, {list(content[source].shape)} in the file")
        else:
            taken[name] = content[source]
    if not taken:
        raise RecipeError(
            f"--init {path}: none of its {len(content)} tensors fits this network. It begins with "
            f"{_shortened(tuple(content), 3)}; the network with {_shortened(tuple(ours), 3)}."
        )
    network.load_state_dict(ours | taken)
    unused = tuple(name for name in content if name not in used)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Pretrained(path.name, digest, tuple(taken), tuple(other_shape), tuple(fresh), unused, _origin(path))


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


def _read_state(path: Path) -> dict[str, Tensor]:
    """A dict of tensors. From a run's checkpoint it takes the weights to serve: the average, where one was kept."""
    if path.is_dir():
        raise RecipeError(f"--init {path} is a folder. Expected a file; of a run it is {path / 'checkpoint.pt'}.")
    if not path.is_file():
        raise RecipeError(f"--init {path}: no such file. Expected a state dict written by torch.save.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as problem:
        reason = str(problem).splitlines()[0]
        raise RecipeError(
            f"--init {path} is not a plain state dict, and nothing else is loaded: files that hold code are refused "
            f"({reason})."
        ) from problem
    if isinstance(content, dict):
        content = content.get("averaged") or content.get("network") or content.get("state_dict") or content
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise RecipeError(f"--init {path}: expected a dict of tensors by name.")
    content.pop("n_averaged", None)
    return {name.removeprefix("module."): tensor for name, tensor in content.items()}
