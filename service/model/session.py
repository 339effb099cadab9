"""Running a bundle's graph: the Session protocol, and ONNX Runtime behind it.

What a session says of its device is what ONNX Runtime reports after opening it, not what was asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as _state

from service.cpus import usable_cpus
from service.errors import BundleError, DeviceError
from service.memory import resident_memory, return_freed_memory
from service.model.bundle import Bundle, GraphName
from service.model.images import Pixels
from service.model.scores import Outputs
from service.settings import Device as Device  # part of this interface: what a session may be asked to run on

ActiveDevice = Literal["cuda", "cpu"]

# Memory that the values inside the graph may take for one batch, unless the setting `batch_mb` says otherwise. Batches
# that fit into a CPU's caches are computed faster than larger ones.
BATCH_BYTES = 48_000_000

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
# TF32 would round the scores away from those the thresholds were calibrated on.
CUDA_OPTIONS = {"use_tf32": "0"}
# A run that fails raises the reason. ONNX Runtime would print it too, and wait for a log that perhaps nobody reads.
RUN_OPTIONS = onnxruntime.RunOptions()
RUN_OPTIONS.log_severity_level = 4
# ONNX Runtime's exceptions have no common base, so each kind (Fail, InvalidGraph, …) is listed.
RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    *(kind for kind in vars(_state).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    *(RuntimeError, ValueError),
)


class Session(Protocol):
    """A graph that is ready to run."""

    @property
    def device(self) -> ActiveDevice: ...

    @property
    def providers(self) -> Sequence[str]:
        """What the runtime itself reports to be using."""
        ...

    @property
    def largest_batch(self) -> int:
        """Most images to compute at once: what was asked for, or fewer if they would take too much memory."""
        ...

    def run(self, images: Pixels) -> Outputs:
        """Outputs by name, one row for each image of uint8 [N, H, W, 3]."""
        ...


class SessionOpener(Protocol):
    """How a bundle's graphs are opened: `open_session`, or a stand-in for tests."""

    def __call__(
        self, bundle: Bundle, graph: GraphName, device: Device, threads: int, max_batch: int, batch_bytes: int
    ) -> Session: ...


@dataclass(frozen=True, slots=True)
class OnnxSession:
    """A graph in ONNX Runtime, with the inputs that are the same for every batch."""

    runtime: Any
    device: ActiveDevice
    providers: Sequence[str]
    outputs: tuple[str, ...]
    constants: Mapping[str, npt.NDArray[np.float32]]
    # Batches are padded to these sizes, so that CUDA sees only shapes it was warmed up for. Empty: no padding.
    buckets: tuple[int, ...] = ()
    # Most images that the graph takes at once, as bundle.json says; more are run one part after the other.
    max_batch: int | None = None
    largest_batch: int = 1

    def run(self, images: Pixels) -> Outputs:
        n = len(images)
        if self.max_batch is not None and n > self.max_batch:
            starts = range(0, n, self.max_batch)
            parts = [self.run(images[start : start + self.max_batch]) for start in starts]
            return {name: np.concatenate([part[name] for part in parts]) for name in self.outputs}
        size = next((bucket for bucket in self.buckets if bucket >= n), n)
        if size > n:
            images = np.concatenate([images, np.repeat(images[-1:], size - n, axis=0)])
        results = self.runtime.run(self.outputs, {"image": images, **self.constants}, RUN_OPTIONS)
        rows = results if size == n else (result[:n] for result in results)
        return dict(zip(self.outputs, rows, strict=True))


def open_session(
    bundle: Bundle,
    graph: GraphName,
    device: Device = "auto",
    threads: int = 0,
    max_batch: int = 32,
    batch_bytes: int = BATCH_BYTES,
) -> OnnxSession:
    """Opens a bundle's graph, checks it against the contract, and warms it up.

    On CUDA with every batch size that it will pad to, on a CPU with batches up to the largest that it finds to fit
    into `batch_bytes`.
    """
    max_batch = bundle.manifest.batch_of(max_batch)
    wanted = choose_providers(device, onnxruntime.get_available_providers())
    runtime = open_runtime(bundle, bundle.graph(graph), wanted, threads, bundle.graph_path(graph))
    providers = runtime.get_providers()
    active = active_device(device, providers)
    _check_tensors(bundle, graph, runtime)
    score = bundle.manifest.preprocessed_score
    constants = {}
    if graph == "perturbed" and score is not None:
        constants["epsilon"] = np.asarray(bundle.manifest.scores[score].epsilon, np.float32)
    session = OnnxSession(
        runtime=runtime,
        device=active,
        providers=providers,
        outputs=tuple(expected_outputs(bundle, graph)),
        constants=constants,
        buckets=_buckets(max_batch) if active == "cuda" else (),
        max_batch=bundle.manifest.max_batch,
    )
    if active == "cuda":
        for n in session.buckets:
            _try_batch(session, bundle, n)
        return replace(session, largest_batch=max_batch)
    return replace(session, largest_batch=_largest_batch(session, bundle, max_batch, batch_bytes))


def choose_providers(device: Device, available: Sequence[str]) -> list[str | tuple[str, dict[str, str]]]:
    """ONNX Runtime's provider list for a device; raises DeviceError for a `cuda` this build does not have."""
    if device == "cpu" or (device == "auto" and CUDA not in available):
        return [CPU]
    if CUDA not in available:
        raise DeviceError(
            f"device cuda was asked for, but this ONNX Runtime only has {', '.join(available)}: "
            "install confgate[gpu] (and not confgate[cpu] beside it), or use device auto or cpu"
        )
    return [(CUDA, CUDA_OPTIONS), CPU]


def active_device(requested: Device, reported: Sequence[str]) -> ActiveDevice:
    """What the opened session runs on; raises DeviceError where `cuda` was asked for and is not in use."""
    if CUDA in reported:
        return "cuda"
    if requested == "cuda":
        raise DeviceError(
            f"device cuda was asked for, but the session runs on {', '.join(reported)}: the CUDA provider "
            "could not start; ONNX Runtime's own message above says which driver or library is missing"
        )
    return "cpu"


def open_runtime(bundle: Bundle, graph: bytes, providers: list[Any], threads: int, path: Path | None = None) -> Any:
    """Opens a graph of the bundle, which is at `path`, or one made from it that uses its weights."""
    if providers != [CPU] and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # finds CUDA and cuDNN where pip put them
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or usable_cpus()
    options.inter_op_num_threads = 1
    # Between two batches, spinning threads would use the CPUs that HTTP and decoding need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if providers == [CPU]:
        # A memory pattern is one block for each batch size, beside what the first batch of that size took. Without, all
        # sizes share that memory, at the same speed.
        options.enable_mem_pattern = False
    # From memory: ONNX Runtime would map the file, and use whatever is written into it later.
    weights = bundle.weights()
    if weights:
        sizes = [len(content) for content in weights.values()]
        options.add_external_initializers_from_files_in_memory(list(weights), list(weights.values()), sizes)
    try:
        return onnxruntime.InferenceSession(graph, options, providers=providers)
    except RUNTIME_ERRORS as error:
        raise BundleError(
            path or bundle.folder, "graph", f"what ONNX Runtime refuses ({error})", "an ONNX graph"
        ) from error


def expected_outputs(bundle: Bundle, graph: GraphName) -> dict[str, list[int | str]]:
    """Output names and shapes; a name in a shape stands for any size."""
    manifest = bundle.manifest
    outputs: dict[str, list[int | str]] = {"logits": ["N", len(manifest.labels)]}
    if manifest.has_confidence:
        outputs["confidence_logit"] = ["N"]
    if "neighbours" in manifest.scores:
        outputs["neighbour_similarity"] = ["N"]
    if graph == "perturbed":
        if manifest.preprocessed_score == "odin":
            outputs["logits_preprocessed"] = ["N", len(manifest.labels)]
        else:
            outputs["confidence_logit_preprocessed"] = ["N"]
    return outputs


def _check_tensors(bundle: Bundle, graph: GraphName, runtime: Any) -> None:
    size = bundle.manifest.input
    inputs: dict[str, tuple[str, list[int | str]]]
    inputs = {"image": ("tensor(uint8)", ["N", size.height, size.width, 3])}
    if graph == "perturbed":
        inputs["epsilon"] = ("tensor(float)", [])
    outputs = {name: ("tensor(float)", shape) for name, shape in expected_outputs(bundle, graph).items()}
    path = bundle.graph_path(graph)
    for kind, expected, tensors in (
        ("input", inputs, runtime.get_inputs()),
        ("output", outputs, runtime.get_outputs()),
    ):
        found = {tensor.name: (tensor.type, list(tensor.shape)) for tensor in tensors}
        if set(found) != set(expected):
            raise BundleError(path, f"{kind}s", sorted(found), str(sorted(expected)))
        for name, (dtype, shape) in expected.items():
            if found[name][0] != dtype or not _same_shape(found[name][1], shape, bundle.manifest.max_batch):
                raise BundleError(path, f"{kind} {name}", _tensor(*found[name]), _tensor(dtype, shape))


def _same_shape(found: list[int | str | None], expected: list[int | str], max_batch: int | None) -> bool:
    """A named expected size, the batch, must be dynamic in the graph, or 1 where max_batch is 1."""
    return len(found) == len(expected) and all(
        (not isinstance(have, int) or have == max_batch == 1) if isinstance(want, str) else have == want
        for have, want in zip(found, expected, strict=True)
    )


def fixed_batch(runtime: Any) -> int | None:
    """The batch size that an opened graph is fixed to, None where it takes any."""
    (size,) = (tensor.shape[0] for tensor in runtime.get_inputs() if tensor.name == "image")
    return size if isinstance(size, int) else None


def _tensor(dtype: str, shape: Sequence[object]) -> str:
    return f"{dtype} {list(shape)}".replace("'", "")


def _buckets(max_batch: int) -> tuple[int, ...]:
    powers = [1]
    while powers[-1] < max_batch:
        powers.append(min(2 * powers[-1], max_batch))
    return tuple(powers)


def _largest_batch(session: OnnxSession, bundle: Bundle, max_batch: int, batch_bytes: int) -> int:
    """Runs ever larger batches until the next one would take more memory than is allowed.

    Only running a graph tells what its values take: ONNX Runtime chooses which of them are in memory at once.
    """
    return_freed_memory()  # what was freed is resident: a batch that uses it again would seem to take nothing
    before, taken, largest = resident_memory(), 0, 1
    for n in _buckets(max_batch):
        if n > 1 and 2 * taken > batch_bytes:
            break
        _try_batch(session, bundle, n)
        largest, now = n, resident_memory()
        if before is not None and now is not None:
            taken = max(taken, now - before)
    return largest


def _try_batch(session: OnnxSession, bundle: Bundle, n: int) -> None:
    size = bundle.manifest.input
    try:
        outputs = session.run(np.zeros((n, size.height, size.width, 3), np.uint8))
    except RUNTIME_ERRORS as error:
        raise BundleError(bundle.folder, "warm-up", f"a graph that fails ({error})", "answers") from error
    for name, rows in outputs.items():
        # The shapes in a graph's header are only a promise.
        if len(rows) != n or not np.isfinite(rows).all():
            raise BundleError(bundle.folder, f"warm-up: {name}", f"{rows.shape} or not finite", f"{n} rows")
