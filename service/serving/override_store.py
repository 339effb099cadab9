"""What an operator has set at run time, kept in STATE/gates.json across restarts.

A state file that cannot be read stops the start. To begin with the bundles' own thresholds instead could accept what
the operator meant to refuse, without a sign of it.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, Self

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from pydantic import AwareDatetime, Field, PositiveInt, ValidationError, model_validator

from service.errors import SettingsError, StateError, StateNotSaved
from service.model.contract import Contract, Name, Rate, Text

log = logging.getLogger("confgate")

FILE = "gates.json"
MAX_HISTORY = 1000
UNSURE = (
    "a change that failed is not in force, but could not be removed from the disk: a restart might apply it. Mend the "
    "disk, then set or reset the gate: what succeeds writes the whole file"
)

Word = Annotated[str, Field(min_length=1, max_length=64)]


class ExpectedShares(Contract):
    """The shares of the calibration images that a gate refuses, by reason."""

    unfamiliar: Rate
    unsure: Rate


class GateRecord(Contract):
    """A gate in full, so that it can be read without its bundle.

    A raw threshold of a pair is null where it refuses nothing. Records from before there were pairs lack the fields
    with a default.
    """

    score: Word
    policy: Word
    threshold: float
    threshold_raw: float | None
    certainty_threshold: float | None = None
    certainty_threshold_raw: float | None = None
    expected_rejection_rate: Rate
    expected_refusals: ExpectedShares | None = None

    @property
    def is_pair(self) -> bool:
        return self.certainty_threshold is not None

    @model_validator(mode="after")
    def _only_a_pair_may_lack_a_threshold(self) -> Self:
        if self.threshold_raw is None and not self.is_pair:
            raise ValueError("threshold_raw is null, and there is no certainty_threshold")
        return self


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
    """STATE/gates.json. Written to a second file and renamed: a reader sees the old state or the new, never half.

    A state is saved when the new file, and then its name, are on disk. Where a step fails, the file gets back what it
    held: a restart must not apply a change that was answered with an error.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"state: '{folder}' is not allowed: {error.strerror}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise SettingsError(f"state: '{folder}' is not allowed: this user cannot write there")
        self._saved: bytes | None = None  # what the file holds; None where there is no file
        self._unsure: set[bytes] = set()  # what it may hold instead, after writes that failed and were not undone

    def read(self) -> State:
        try:
            content = self._content()
        except OSError as error:
            raise StateError(f"{self.path} cannot be read: {error.strerror}") from error
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
        self._saved = content
        return state

    def write(self, state: State) -> None:
        """Saves the state to disk, or raises StateNotSaved, which says what is on disk instead."""
        content = (state.model_dump_json(indent=2) + "\n").encode()
        with self._only_writer():
            self._refuse_if_written_by_others()
            try:
                self._replace(content)
            except OSError as error:
                outcome = self._undo(content)
                raise StateNotSaved(f"{self.path} cannot be written: {error.strerror}; {outcome}") from error
            self._saved = content
            self._unsure.clear()

    def settle(self) -> None:
        """Writes the saved state again where a failed write was not undone; StateNotSaved if it still cannot be."""
        if not self._unsure:
            return
        with self._only_writer():
            self._refuse_if_written_by_others()
            try:
                self._replace(self._saved)
            except OSError as error:
                raise StateNotSaved(f"{self.path} cannot be written: {error.strerror}; {UNSURE}") from error
            self._unsure.clear()

    def _refuse_if_written_by_others(self) -> None:
        try:
            found = self._content()
        except OSError as error:
            raise StateNotSaved(f"{self.path} cannot be read: {error.strerror}; nothing was changed") from error
        if found != self._saved and found not in self._unsure:
            raise StateNotSaved(
                f"{self.path} was written by somebody else since this service read it: give each service a state "
                "folder of its own, and restart this one"
            )

    def _undo(self, failed: bytes) -> str:
        """Gives the file its saved content back after a write that failed, and says what is on disk now."""
        try:
            if not self._unsure and self._content() == self._saved:
                return "nothing was changed"
            self._replace(self._saved)
        except OSError as error:
            self._unsure.add(failed)
            log.error("a gate change that failed may be in the state file", extra={"why": str(error)})
            return UNSURE
        self._unsure.clear()
        return "the file was put back as it was, and nothing was changed"

    def _replace(self, content: bytes | None) -> None:
        """Puts a file with this content, or none, under the name: on disk when it returns."""
        if content is None:
            self.path.unlink(missing_ok=True)
        else:
            partial = self.path.with_name(f".{FILE}.partial")
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)
        _sync_folder(self.path.parent)

    @contextmanager
    def _only_writer(self) -> Iterator[None]:
        """Of two services that write at the same time, each would replace what the other one wrote."""
        if fcntl is None:
            yield
            return
        try:
            handle = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise StateNotSaved(f"{self.path} cannot be written: {error.strerror}; nothing was changed") from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StateNotSaved(
                    f"another service is writing {self.path}: give each service a state folder of its own"
                ) from error
            except OSError:
                pass  # a file system without locks: `_refuse_if_written_by_others` still compares the content
            yield
        finally:
            os.close(handle)

    def _content(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable. Not every system can open a folder."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
