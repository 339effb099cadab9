"""What a bundle's graphs answer for sets of images, kept on disk: a stopped evaluation continues where it was.

A file is named after everything its content depends on: the hashes of the graphs, the pixels, ε and the device. The
graph's outputs are kept, not scores: a score that is added later needs no new pass over the images.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from service.cpus import usable_cpus
from service.model.bundle import Bundle, GraphName
from service.model.images import Pixels
from service.model.scores import Outputs
from service.model.session import CPU, Device, OnnxSession, choose_providers, open_session
from training.evaluation.progress import Progress, silent
from training.graphs.image_views import AnyImages, as_served, batches_of
from training.graphs.images_at_once import ACTIVATION_BYTES, MOST_FORWARD, MOST_PERTURBED, images_at_once
from training.graphs.perturbed_images import PerturbedImages, open_perturbed_images
from training.graphs.work import work_of_one_image

MOST_AT_ONCE: dict[GraphName, int] = {"forward": MOST_FORWARD, "perturbed": MOST_PERTURBED}
# Sessions of the service plan their memory, and so take it twice.
BATCH_BYTES = ACTIVATION_BYTES // 2
HASHED_AT_ONCE = 32
Kept = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class ImageSet:
    """Images, and their name in messages and file names."""

    name: str
    images: AnyImages
    # Of images that are in the bank of neighbours: their similarity to the others in it.
    own_similarity: Mapping[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def digest(self) -> str:
        """Of the pixels and their shape."""
        digest = hashlib.sha256(repr(self.images.shape).encode())
        for pixels in batches_of(self.images, HASHED_AT_ONCE):
            digest.update(np.ascontiguousarray(pixels).data)
        return digest.hexdigest()


@dataclass
class BundleOutputs:
    """The answers of one bundle, computed at first use."""

    bundle: Bundle
    folder: Path
    device: Device = "auto"
    progress: Progress = silent
    _memory: dict[Path, Kept] = field(default_factory=dict)

    def clean(self, images: ImageSet) -> Outputs:
        """Outputs of the forward graph."""
        path = self._path("forward", images, None)
        if not self._is_kept(path, images):
            batches = self._batches("forward", images, images.name)
            self._keep(path, [self._forward.run(batch) for batch in batches])
        return self._memory[path]

    def preprocessed(self, images: ImageSet, epsilon: float) -> Outputs:
        """The output that only the perturbed graph has, for images perturbed by ε; with ε = 0 it is the clean one."""
        if epsilon == 0:
            return {f"{name}_preprocessed": rows for name, rows in self.clean(images).items()}
        self.prepare(images, [epsilon])
        return self._memory[self._path("perturbed", images, epsilon)]

    def prepare(self, images: ImageSet, epsilons: Iterable[float]) -> None:
        """Computes `preprocessed` for several ε in one pass, which finds the gradient direction once."""
        paths = {epsilon: self._path("perturbed", images, epsilon) for epsilon in sorted(set(epsilons) - {0})}
        missing = [epsilon for epsilon, path in paths.items() if not self._is_kept(path, images)]
        if not missing:
            return
        what = f"{images.name}, ε = {', '.join(f'{epsilon:g}' for epsilon in missing)}"
        parts = [self._perturbed.run(batch, missing) for batch in self._batches("perturbed", images, what)]
        for epsilon, of_epsilon in zip(missing, zip(*parts, strict=True), strict=True):
            self._keep(paths[epsilon], of_epsilon)

    def _is_kept(self, path: Path, images: ImageSet) -> bool:
        if path not in self._memory:
            found = _read(path, len(images))
            if found is not None:
                self._memory[path] = found
        return path in self._memory

    def _keep(self, path: Path, parts: Sequence[Outputs]) -> None:
        outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        _write(path, outputs)
        self._memory[path] = outputs

    def _path(self, graph: GraphName, images: ImageSet, epsilon: float | None) -> Path:
        digest = hashlib.sha256()
        manifest = self.bundle.manifest
        for file in (manifest.graphs[graph], *manifest.external_data):
            digest.update(file.sha256.encode())
        digest.update(images.digest.encode())
        # TF32 is off, but a GPU still rounds differently from a CPU.
        on_cpu = choose_providers(self.device, onnxruntime.get_available_providers()) == [CPU]
        digest.update(repr((manifest.input.model_dump_json(), epsilon, on_cpu)).encode())
        set_name = "".join(c if c.isalnum() else "-" for c in images.name)
        suffix = "" if epsilon is None else f"-epsilon-{epsilon:g}"
        name = f"{set_name}{suffix}-{digest.hexdigest()[:16]}.npz"
        return self.folder / f"{manifest.name}-{manifest.version}" / name

    def _batches(self, graph: GraphName, images: ImageSet, what: str) -> Iterator[Pixels]:
        done = 0
        self.progress(what, done, len(images))
        for pixels in batches_of(as_served(images.images, self.bundle.manifest.input), self.at_once[graph]):
            yield pixels
            done += len(pixels)
            self.progress(what, done, len(images))

    @cached_property
    def at_once(self) -> dict[GraphName, int]:
        """How many images each graph processes at a time."""
        path = self.bundle.graph_path
        return {
            graph: images_at_once(path(graph), MOST_AT_ONCE[graph], BATCH_BYTES)
            for graph in self.bundle.manifest.graphs
        }

    @cached_property
    def work(self) -> int | None:
        """Multiply-adds of the forward graph for one image."""
        return work_of_one_image(self.bundle.graph_path("forward"))

    @cached_property
    def _forward(self) -> OnnxSession:
        # All CPUs: unlike a server, an evaluation has nothing else to do.
        return open_session(self.bundle, "forward", self.device, usable_cpus(), self.at_once["forward"])

    @cached_property
    def _perturbed(self) -> PerturbedImages:
        return open_perturbed_images(self.bundle, self.device, usable_cpus(), self.at_once["perturbed"])


def _read(path: Path, images: int) -> Kept | None:
    """What was kept, or None: a truncated file, or one of another length, is computed again."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            kept = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, BadZipFile):
        return None
    return kept if kept and all(len(rows) == images for rows in kept.values()) else None


def _write(path: Path, outputs: Kept) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(file, **outputs)  # type: ignore[arg-type]  # its stubs take every name for allow_pickle
    partial.replace(path)
