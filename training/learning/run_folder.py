"""A run on disk: run.json (what it is), checkpoint.pt, metrics.jsonl, tensorboard/, and result.json once it is done.

Every file is replaced atomically or only appended to, so a run that is killed at any moment can be resumed.
"""

import io
import json
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.errors import RecipeError, RunError
from training.recipe import parse_recipe

if sys.platform != "win32":
    import fcntl


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self, identity: dict[str, Any]) -> None:
        """Claims the folder for this run. Fails if it holds another run, or if another process is training in it."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._lock()
        record = self.path / "run.json"
        if record.is_file():
            found = _parsed(record.read_text())
            if found is None:
                raise RunError(f"{record} is no JSON: it was damaged. Delete the folder to train from the start.")
            different = _differences(found, json.loads(json.dumps(identity)))
            if different:
                raise RecipeError(
                    f"{self.path} holds another run: {'; '.join(different)}. Choose another --out, or delete it."
                )
        else:
            self._replace("run.json", _lines(identity))

    def _lock(self) -> None:
        """Locks the folder until this process ends: two processes would overwrite each other's checkpoints."""
        if sys.platform == "win32":
            return
        with writing(self.path / "run.lock"):
            lock = os.open(self.path / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            os.close(lock)
            raise RecipeError(
                f"another process is training in {self.path}. Wait until it ends, stop it, or choose another --out."
            ) from problem

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the checkpoint. It is made in memory: torch hides a full disk behind errors of its own."""
        content = io.BytesIO()
        torch.save(state, content)
        self._replace("checkpoint.pt", content.getbuffer())

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The checkpoint; None if there is none yet."""
        checkpoint = self.path / "checkpoint.pt"
        if not checkpoint.is_file():
            return None
        try:
            state: dict[str, Any] = torch.load(checkpoint, map_location=device, weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as problem:
            reason = str(problem).splitlines()[0]
            raise RecipeError(
                f"{checkpoint} cannot be read ({reason}). Delete the folder to train from the start."
            ) from problem
        return state

    def append(self, record: dict[str, Any]) -> None:
        """Adds one line to metrics.jsonl."""
        log = self.path / "metrics.jsonl"
        with writing(log), log.open("a") as lines:
            lines.write(json.dumps(record) + "\n")

    def records(self, kind: str) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl of one kind: "step" or "epoch"."""
        log = self.path / "metrics.jsonl"
        for line in log.read_text().splitlines() if log.is_file() else []:
            record = _parsed(line)
            if record is not None and record.get("kind", "epoch") == kind:
                yield record

    def forget_after(self, step: int) -> None:
        """Drops what a killed process logged after its last checkpoint: a resumed run takes those steps again."""
        log = self.path / "metrics.jsonl"
        if log.is_file():
            records = (_parsed(line) for line in log.read_text().splitlines())
            kept = [record for record in records if record is not None and record["step"] <= step]
            self._replace("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept).encode())

    def array(self, name: str) -> NDArray[np.float32] | None:
        """An array that the folder keeps; None if it is not there."""
        file = self.path / name
        if not file.is_file():
            return None
        try:
            kept: NDArray[np.float32] = np.load(file, allow_pickle=False)
        except (ValueError, EOFError) as problem:
            raise RunError(
                f"{file} cannot be read ({problem}). Delete it: the same command makes it again."
            ) from problem
        return kept

    def keep_array(self, name: str, array: NDArray[np.float32]) -> None:
        content = io.BytesIO()
        np.save(content, array)
        self._replace(name, content.getbuffer())

    def result(self) -> dict[str, Any]:
        """What a finished run has come to."""
        found: dict[str, Any] = json.loads((self.path / "result.json").read_text())
        return found

    def write_result(self, result: dict[str, Any]) -> None:
        self._replace("result.json", _lines(result))

    def _replace(self, name: str, content: bytes | memoryview) -> None:
        """The new content is on the disk before its name is: neither a kill nor a power failure leaves half of it."""
        partial = self.path / f"{name}.partial"
        with writing(self.path / name):
            try:
                with partial.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(self.path / name)
            except OSError:
                partial.unlink(missing_ok=True)  # a full disk needs its space
                raise


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Turns a failure to write the file into a message that says what to do."""
    try:
        yield
    except OSError as problem:
        raise RunError(
            f"{file} cannot be written ({problem.strerror}). The last checkpoint, if there is one, stays as it was. "
            f"Free space or allow writing there; the same command then goes on from it."
        ) from problem


def recorded_fingerprint(run: Path) -> str | None:
    """The fingerprint of the data that a run was begun with; None if there is no run, or nothing that can be read."""
    record = run / "run.json"
    found = _parsed(record.read_text()) if record.is_file() else None
    return None if found is None else found.get("splits", {}).get("fingerprint")


def _lines(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, indent=1) + "\n").encode()


def _parsed(text: str) -> dict[str, Any] | None:
    """A record; None for a text that is cut off because the process was killed."""
    try:
        record: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError:
        return None
    return record


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """How two runs differ. Recipe fields that are newer than the old run count with their defaults."""
    old_recipe, new_recipe = (_flat(parse_recipe(run["recipe"]).model_dump(mode="json")) for run in (old, new))
    if old_recipe["data.folder"] and new_recipe["data.folder"]:
        # It may be moved and renamed, and the data set is called like it: the fingerprint identifies its images.
        for field in ("data.folder", "data.dataset"):
            old_recipe[field] = new_recipe[field]
    found = [
        f"{field} is {new_recipe.get(field)!r}, it was {old_recipe.get(field)!r}"
        for field in sorted(old_recipe.keys() | new_recipe.keys())
        if old_recipe.get(field) != new_recipe.get(field)
    ]
    if old["seed"] != new["seed"]:
        found.append(f"the seed is {new['seed']}, it was {old['seed']}")
    if old["splits"] != new["splits"]:
        found.append("the images are not the same")
    if (old.get("weights") or {}).get("sha256") != (new.get("weights") or {}).get("sha256"):
        found.append("the weights of network.weights are not the same")
    if (old.get("init") or {}).get("sha256") != (new.get("init") or {}).get("sha256"):
        found.append("--init is not the same")
    return found


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in fields.items():
        out |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return out
