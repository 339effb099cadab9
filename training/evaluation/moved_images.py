"""A bundle's perturbed graph for several ε at once: the direction of the step is found once for each batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError

from service.bundle import Bundle
from service.errors import BundleError
from service.gate import Outputs
from service.preprocess import Pixels
from service.session import (
    RUNTIME_ERRORS,
    Device,
    OnnxSession,
    active_device,
    choose_providers,
    expected_outputs,
    open_runtime,
    open_session,
)
from training.gradient.cut import cut_at_direction


@dataclass(frozen=True)
class MovedImages:
    """What the network answers for images that were moved by ε."""

    answering: OnnxSession
    finding: OnnxSession | None  # the direction; None: `answering` is the whole graph and finds it anew for each ε

    def run(self, images: Pixels, epsilons: Sequence[float]) -> list[Outputs]:
        """The preprocessed outputs, for each ε one row for each image."""
        # Of one batch at a time: the directions of a whole set would take as much room as its images.
        direction = {} if self.finding is None else self.finding.run(images)
        return [
            replace(self.answering, constants={"epsilon": np.asarray(epsilon, np.float32), **direction}).run(images)
            for epsilon in epsilons
        ]


def open_moved_images(bundle: Bundle, device: Device, threads: int, max_batch: int) -> MovedImages:
    """The perturbed graph in two parts; in one where it was put together otherwise than here, with the same answers."""
    wanted = tuple(name for name in expected_outputs(bundle, "perturbed") if name.endswith("_preprocessed"))
    try:
        parts = _open_parts(bundle, wanted, device, threads)
    except (BundleError, DecodeError, *RUNTIME_ERRORS):
        parts = None  # the whole graph either works or says itself what is wrong with it
    if parts is not None:
        return parts
    whole = open_session(bundle, "perturbed", device, threads, max_batch)
    return MovedImages(answering=replace(whole, outputs=wanted), finding=None)


def _open_parts(bundle: Bundle, wanted: tuple[str, ...], device: Device, threads: int) -> MovedImages | None:
    """Both parts, if the graph can be cut and they answer for a black image."""
    cut = cut_at_direction(onnx.load(bundle.graph_path("perturbed"), load_external_data=False), wanted)
    if cut is None:
        return None
    parts = MovedImages(
        answering=_open_part(bundle, cut.moving, wanted, device, threads),
        finding=_open_part(bundle, cut.finding, (cut.direction,), device, threads),
    )
    size = bundle.manifest.input
    (answers,) = parts.run(np.zeros((1, size.height, size.width, 3), np.uint8), [0.0])
    return parts if all(len(rows) == 1 and np.isfinite(rows).all() for rows in answers.values()) else None


def _open_part(
    bundle: Bundle, part: onnx.ModelProto, outputs: tuple[str, ...], device: Device, threads: int
) -> OnnxSession:
    providers = choose_providers(device, onnxruntime.get_available_providers())
    runtime = open_runtime(bundle, part.SerializeToString(), providers, threads)
    reported = runtime.get_providers()
    # No buckets: all batches but the last are of one size, and nobody waits while a GPU meets another.
    return OnnxSession(runtime, active_device(device, reported), reported, outputs, constants={})
