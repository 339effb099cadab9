"""What a bundle's graphs answer for sets of images, kept on disk so that an evaluation is never computed twice.

A file is named after everything its content depends on: the hashes of the graphs, the pixels, ε and the device. Kept
are the graph's outputs, not scores, so that a score that is added later needs no new pass over the images.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from service.bundle import Bundle, GraphName
from service.cpus import usable_cpus
from service.gate import Outputs
from service.session import CPU, Device, OnnxSession, choose_providers, open_session
from training.data import Images
from training.data_folder import FolderImages
from training.evaluate import as_served

BATCHES: dict[GraphName, int] = {
    "forward": 250,
    # The backward pass holds every activation of the batch: of WRN-28-10 about 50 MB an image.
    "perturbed": 50,
}
HASHED_AT_ONCE = 250
Progress = Callable[[str, int, int], None]  # what is computed, images done, images in all


def silent(_what: str, _done: int, _total: int) -> None:
    """No progress is shown."""


@dataclass(frozen=True)
class ImageSet:
    """Images under the name a person sees."""

    name: str
    images: Images | FolderImages

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def digest(self) -> str:
        """Of the pixels and their shape."""
        digest = hashlib.sha256(repr(self.images.shape).encode())
        for start in range(0, len(self), HASHED_AT_ONCE):
            digest.update(np.ascontiguousarray(self.images[start : start + HASHED_AT_ONCE]).tobytes())
        return digest.hexdigest()


@dataclass
class BundleOutputs:
    """The answers of one bundle, computed when first asked for."""

    bundle: Bundle
    folder: Path
    device: Device = "auto"
    progress: Progress = silent
    _sessions: dict[GraphName, OnnxSession] = field(default_factory=dict)
    _memory: dict[Path, dict[str, NDArray[np.float32]]] = field(default_factory=dict)

    def clean(self, images: ImageSet) -> Outputs:
        """Outputs of the forward graph."""
        return self._outputs("forward", images, None)

    def preprocessed(self, images: ImageSet, epsilon: float) -> Outputs:
        """The output that only the perturbed graph has, for images moved by ε; by nothing, it is the clean one."""
        if epsilon == 0:
            return {f"{name}_preprocessed": rows for name, rows in self.clean(images).items()}
        return self._outputs("perturbed", images, epsilon)

    def _outputs(self, graph: GraphName, images: ImageSet, epsilon: float | None) -> Outputs:
        path = self.folder / self._file_name(graph, images, epsilon)
        if path not in self._memory:
            found = _read(path, len(images))
            if found is None:
                found = self._compute(graph, images, epsilon)
                _write(path, found)
            self._memory[path] = found
        return self._memory[path]

    def _file_name(self, graph: GraphName, images: ImageSet, epsilon: float | None) -> str:
        digest = hashlib.sha256()
        manifest = self.bundle.manifest
        for file in (manifest.graphs[graph], *manifest.external_data):
            digest.update(file.sha256.encode())
        digest.update(images.digest.encode())
        # TF32 is off, but a GPU still rounds otherwise than a CPU.
        on_cpu = choose_providers(self.device, onnxruntime.get_available_providers()) == [CPU]
        digest.update(repr((manifest.input.model_dump_json(), epsilon, on_cpu)).encode())
        set_name = "".join(c if c.isalnum() else "-" for c in images.name)
        moved = "" if epsilon is None else f"-epsilon-{epsilon:g}"
        return f"{manifest.name}-{manifest.version}/{set_name}{moved}-{digest.hexdigest()[:16]}.npz"

    def _compute(self, graph: GraphName, images: ImageSet, epsilon: float | None) -> dict[str, NDArray[np.float32]]:
        session = self._session(graph)
        wanted = session.outputs
        if epsilon is not None:
            session = replace(session, constants={"epsilon": np.asarray(epsilon, np.float32)})
            wanted = tuple(name for name in wanted if name.endswith("_preprocessed"))
        what = images.name if epsilon is None else f"{images.name}, ε = {epsilon:g}"
        parts: list[Outputs] = []
        for start in range(0, len(images), BATCHES[graph]):
            self.progress(what, start, len(images))
            batch = as_served(images.images[start : start + BATCHES[graph]], self.bundle.manifest.input)
            parts.append(session.run(batch))
        self.progress(what, len(images), len(images))
        return {name: np.concatenate([part[name] for part in parts]) for name in wanted}

    def _session(self, graph: GraphName) -> OnnxSession:
        if graph not in self._sessions:
            # All CPUs: unlike a server, an evaluation has nothing else to do meanwhile.
            self._sessions[graph] = open_session(self.bundle, graph, self.device, usable_cpus(), BATCHES[graph])
        return self._sessions[graph]


def _read(path: Path, images: int) -> dict[str, NDArray[np.float32]] | None:
    """What was kept, or None: a file that is cut off or of another length is computed again."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            kept = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, BadZipFile):
        return None
    return kept if kept and all(len(rows) == images for rows in kept.values()) else None


def _write(path: Path, outputs: dict[str, NDArray[np.float32]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(file, **outputs)  # type: ignore[arg-type]  # its stubs take every name for allow_pickle
    partial.replace(path)
