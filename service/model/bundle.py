"""The bundle: the one hand-over from training to serving, models/NAME/VERSION/ with bundle.json and its graphs.

`load_bundle` trusts nothing that it has not checked, and `write_bundle` publishes a folder whole or not at all.
What bundle.json may say is in `service.model.manifest`; what is inside the ONNX files (tensor names, types and shapes)
is checked where they are opened, in `service.model.session`.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from service.errors import BundleError
from service.model.contract import NAME
from service.model.manifest import (
    MANIFEST,
    SCHEMA_VERSIONS,
    Default,
    Figure,
    GraphName,
    HashedFile,
    Input,
    Manifest,
    Policy,
    Provenance,
    Score,
)
from service.model.onnx_file import NotOnnxError, external_files
from service.model.references import Display, Histogram, Typicality

__all__ = [
    "Bundle",
    "Default",
    "Display",
    "Figure",
    "GraphName",
    "HashedFile",
    "Histogram",
    "Input",
    "Manifest",
    "Policy",
    "Provenance",
    "Score",
    "Typicality",
    "load_bundle",
    "target_problem",
    "write_bundle",
]

# Files that a bundle may hold without hashing them, because nothing is computed from them.
DOCUMENT_SUFFIXES = frozenset({".md", ".png", ".svg", ".csv", ".json"})


@dataclass(frozen=True, slots=True)
class Bundle:
    """A verified bundle: the folder, what its bundle.json says, and what was in the files that it names.

    The files are read once. What was verified is what is used, whatever happens to the files afterwards.
    """

    folder: Path
    manifest: Manifest
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    def graph_path(self, graph: GraphName) -> Path:
        return self.folder / self.manifest.graphs[graph].file

    def graph(self, graph: GraphName) -> bytes:
        """The content of a graph's .onnx file."""
        return self.files[self.manifest.graphs[graph].file]

    def weights(self) -> dict[str, bytes]:
        """The content of each file with weights outside the .onnx files."""
        return {file.file: self.files[file.file] for file in self.manifest.external_data}

    def without_files(self) -> Self:
        """The same bundle without the content of its files: for when its graphs are open."""
        return replace(self, files={})


def load_bundle(folder: Path) -> Bundle:
    """Reads and verifies models/NAME/VERSION; raises BundleError at the first thing that is not as it says."""
    bundle = _load_folder(folder)
    path, manifest = folder / MANIFEST, bundle.manifest
    here = folder.absolute()
    if here.name != str(manifest.version):
        raise BundleError(path, "version", manifest.version, f"{here.name!r}, the name of its folder")
    if here.parent.name != manifest.name:
        raise BundleError(path, "name", repr(manifest.name), f"{here.parent.name!r}, the folder above")
    return bundle


def target_problem(target: Path) -> str | None:
    """Why no new bundle can be written to models/NAME/VERSION, as the end of a sentence; None if it can."""
    name, version = target.parent.name, target.name
    if not re.fullmatch(r"[1-9][0-9]*", version):
        return "expected models/NAME/VERSION with a whole number from 1 as VERSION."
    if not re.fullmatch(NAME, name):
        return "expected models/NAME/VERSION with at most 64 letters, digits, '-', '_' and '.' as NAME."
    if target.exists() or target.is_symlink():
        return "which exists; expected a new version: bundles are never edited."
    above = next(folder for folder in target.absolute().parents if folder.exists())
    if not above.is_dir():
        return f"but {above} is a file; expected a folder, or none yet."
    if not os.access(above, os.W_OK | os.X_OK):
        return f"but {above} cannot be written to. Allow writing there, or name another folder."
    return None


def write_bundle(
    models: Path,
    manifest: Manifest,
    files: Mapping[str, Path | bytes],
    check: Callable[[Bundle], None] | None = None,
) -> Bundle:
    """Publishes models/NAME/VERSION whole or not at all: written beside, verified, `check`ed, then renamed.

    `files` holds the content of every file that the manifest names, and documents such as CARD.md.
    """
    target = models / manifest.name / str(manifest.version)
    if target.exists():
        raise BundleError(target, "version", "a folder that exists", "a new version: bundles are never edited")
    try:
        return _publish(target, manifest, files, check)
    except OSError as problem:
        raise BundleError(
            target,
            "folder",
            f"{problem.strerror or problem} while it was written, so nothing was kept",
            "free space, and a folder that can be written to",
        ) from problem


def _publish(
    target: Path, manifest: Manifest, files: Mapping[str, Path | bytes], check: Callable[[Bundle], None] | None
) -> Bundle:
    target.parent.mkdir(parents=True, exist_ok=True)
    # The leading dot hides the unfinished folder from the loader.
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for name, content in files.items():
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
                raise BundleError(target, "files", repr(name), "a plain file name")
            if isinstance(content, bytes):
                (unfinished / name).write_bytes(content)
            else:
                shutil.copyfile(content, unfinished / name)
        (unfinished / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        bundle = _load_folder(unfinished)
        if check is not None:
            check(bundle)
        for written in unfinished.iterdir():
            with written.open("rb") as file:
                os.fsync(file.fileno())
        unfinished.chmod(0o755)  # mkdtemp's 0700 would hide the bundle from the user the service runs as
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)  # the error that led here is the one to tell
        raise
    return load_bundle(target)


def _load_folder(folder: Path) -> Bundle:
    path = folder / MANIFEST
    if not path.is_file():
        raise BundleError(path, "file", "nothing" if folder.is_dir() else "no such folder", "a bundle.json")
    manifest = _parse(path)
    files = {file.file: _read_verified(folder, file) for file in manifest.files}
    for graph in manifest.graphs.values():
        _check_external_data(folder / graph.file, files[graph.file], manifest)
    known = {MANIFEST, *(file.file for file in manifest.files)}
    for entry in sorted(folder.iterdir()):
        if entry.name not in known and entry.suffix not in DOCUMENT_SUFFIXES:
            raise BundleError(entry, "file", "a file that bundle.json does not name", "no such file")
    return Bundle(folder, manifest, files)


def _parse(path: Path) -> Manifest:
    text = path.read_bytes()
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(path, "file", f"text that is not JSON ({error})", "a JSON object") from error
    if not isinstance(raw, dict):
        raise BundleError(path, "file", f"a JSON {type(raw).__name__}", "a JSON object")
    # Checked first: another schema version may have other fields.
    version = raw.get("schema_version")
    if isinstance(version, bool) or version not in SCHEMA_VERSIONS:
        raise BundleError(path, "schema_version", repr(version), " or ".join(map(str, SCHEMA_VERSIONS)))
    try:
        return Manifest.model_validate_json(text, strict=True)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        field = ".".join(str(part) for part in first["loc"] if part != "[key]") or "the whole"
        found = "nothing" if first["type"] == "missing" else _shortened(first["input"])
        more = f" (and {len(others)} more problems)" if others else ""
        wanted = first["msg"].removeprefix("Value error, ").removeprefix("expected ")
        raise BundleError(path, field, found, wanted + more) from error


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _read_verified(folder: Path, expected: HashedFile) -> bytes:
    """The content of a file, if it has the size and the hash that bundle.json gives."""
    path = folder / expected.file
    if path.resolve().parent != folder.resolve():
        raise BundleError(path, "file", f"a link to {path.resolve()}", "a file inside the bundle's folder")
    if not path.is_file():
        raise BundleError(path, "file", "nothing", f"a file of {expected.size} bytes")
    size = path.stat().st_size
    if size != expected.size:  # known before a file that may be huge is read
        raise BundleError(path, "size", f"{size} bytes", f"{expected.size} bytes")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != expected.sha256:
        raise BundleError(path, "sha256", found, expected.sha256)
    return content


def _check_external_data(path: Path, graph: bytes, manifest: Manifest) -> None:
    """A graph may only read weights from files that bundle.json names, because only those are hashed."""
    try:
        referenced = external_files(graph)
    except NotOnnxError as error:
        raise BundleError(path, "graph", f"a file that is not ONNX ({error})", "an ONNX graph") from error
    named = {file.file for file in manifest.external_data}
    for other in sorted(referenced - named):
        expected = ", ".join(sorted(named)) or "none: all weights in the graph itself"
        raise BundleError(
            path, "external data", repr(other[:80]), f"a file that bundle.json names in external_data ({expected})"
        )
