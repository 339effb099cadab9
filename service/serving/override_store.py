"""What an operator has set at run time, kept in STATE/gates.json across restarts.

A state file that cannot be read stops the start. To begin with the bundles' own thresholds instead could accept what
the operator meant to refuse, without a sign of it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from pydantic import AwareDatetime, Field, PositiveInt, ValidationError

from service.errors import SettingsError, StateError, StateNotSaved
from service.model.manifest import Contract, Name, Rate, Text

FILE = "gates.json"
MAX_HISTORY = 1000

Word = Annotated[str, Field(min_length=1, max_length=64)]


class GateRecord(Contract):
    """A gate in full, so that it can be read without its bundle."""

    score: Word
    policy: Word
    threshold: float
    threshold_raw: float
    expected_rejection_rate: Rate


class GateSetting(Contract):
    """What an operator set for one version."""

    model: Name
    version: PositiveInt
    gate: GateRecord
    custom: bool
    # A custom threshold is valid for these weights only.
    graph_sha256: str
    by: Word
    at: AwareDatetime
    note: Text | None = None


class GateChangeRecord(Contract):
    """One line of the history."""

    model: Name
    version: PositiveInt
    action: Literal["set", "reset"]
    by: Word
    at: AwareDatetime
    note: Text | None = None
    before: GateRecord | None
    after: GateRecord | None


class State(Contract):
    schema_version: Literal[1] = 1
    gates: tuple[GateSetting, ...] = ()
    history: tuple[GateChangeRecord, ...] = ()


class StateFile:
    """STATE/gates.json. Written to a second file and renamed: a reader sees the old state or the new, never half."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"state: '{folder}' is not allowed: {error.strerror}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise SettingsError(f"state: '{folder}' is not allowed: this user cannot write there")
        self._known: bytes | None = None

    def read(self) -> State:
        content = self._content()
        if content is None:
            return State()
        try:
            state = State.model_validate_json(content, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise StateError(
                f"{self.path}: {where}: {first['msg']}. It holds the thresholds that an operator set: mend it or bring "
                "back a copy; or, if the bundles' own thresholds may be used again, move it away"
            ) from error
        self._known = content
        return state

    def write(self, state: State) -> None:
        """Saves the state to disk, or raises StateNotSaved and changes nothing."""
        content = (state.model_dump_json(indent=2) + "\n").encode()
        partial = self.path.with_name(f".{FILE}.partial")
        try:
            with self._only_writer():
                if self._content() != self._known:
                    raise StateNotSaved(
                        f"{self.path} was written by somebody else since this service read it: give each service a "
                        "state folder of its own, and restart this one"
                    )
                with partial.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(self.path)
                self._known = content
                _sync_folder(self.path.parent)
        except OSError as error:
            raise StateNotSaved(f"{self.path} cannot be written: {error.strerror}; nothing was changed") from error

    @contextmanager
    def _only_writer(self) -> Iterator[None]:
        """Of two services that write at the same time, each would replace what the other one wrote."""
        if fcntl is None:
            yield
            return
        handle = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise StateNotSaved(
                f"another service is writing {self.path}: give each service a state folder of its own"
            ) from error
        finally:
            os.close(handle)

    def _content(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"{self.path} cannot be read: {error.strerror}") from error


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable. Not every system can open a folder."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
