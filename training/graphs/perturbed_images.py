"""A perturbed graph for several ε at once: the direction of the step is found once for each batch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError

from service.errors import BundleError
from service.model.bundle import Bundle
from service.model.images import Pixels
from service.model.scores import Outputs
from service.model.session import (
    CPU,
    RUNTIME_ERRORS,
    Device,
    OnnxSession,
    active_device,
    choose_providers,
    expected_outputs,
    open_runtime,
    open_session,
)
from training.graphs.gradient.cut import IMAGE, cut_at_direction
from training.graphs.run import open_graph

# Opens a part of the graph for the outputs that are wanted of it.
OpenPart = Callable[[onnx.ModelProto, tuple[str, ...]], OnnxSession]


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
    """A bundle's perturbed graph in two parts; in one where it was put together otherwise than here."""

    def open_part(part: onnx.ModelProto, outputs: tuple[str, ...]) -> OnnxSession:
        providers = choose_providers(device, onnxruntime.get_available_providers())
        runtime = open_runtime(bundle, part.SerializeToString(), providers, threads)
        reported = runtime.get_providers()
        # No buckets: all batches but the last are of one size, and nobody waits while a GPU meets another.
        return OnnxSession(runtime, active_device(device, reported), reported, outputs, constants={})

    wanted = _preprocessed(expected_outputs(bundle, "perturbed"))
    parts = _in_parts(bundle.graph_path("perturbed"), wanted, open_part)
    if parts is not None:
        return parts
    whole = open_session(bundle, "perturbed", device, threads, max_batch)
    return MovedImages(answering=replace(whole, outputs=wanted), finding=None)


def moved_images_of(perturbed: onnx.ModelProto | Path) -> MovedImages:
    """The same of a graph that is in no bundle yet, on the CPU: for calibration."""
    folder = perturbed.parent if isinstance(perturbed, Path) else None

    def open_part(part: onnx.ModelProto | Path, outputs: tuple[str, ...]) -> OnnxSession:
        return OnnxSession(open_graph(part, weights_in=folder), "cpu", [CPU], outputs, constants={})

    wanted = _preprocessed(value.name for value in _load(perturbed).graph.output)
    parts = _in_parts(perturbed, wanted, open_part)
    return parts or MovedImages(answering=open_part(perturbed, wanted), finding=None)


def _preprocessed(outputs: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in outputs if name.endswith("_preprocessed"))


def _in_parts(perturbed: onnx.ModelProto | Path, wanted: tuple[str, ...], open_part: OpenPart) -> MovedImages | None:
    """Both parts, if the graph can be cut and they answer for a black image."""
    try:
        model = _load(perturbed)
        cut = cut_at_direction(model, wanted)
        if cut is None:
            return None
        parts = MovedImages(answering=open_part(cut.moving, wanted), finding=open_part(cut.finding, (cut.direction,)))
        (answers,) = parts.run(_black_image(model), [0.0])
    except (BundleError, DecodeError, *RUNTIME_ERRORS):
        return None  # the whole graph either works or says itself what is wrong with it
    return parts if all(len(rows) == 1 and np.isfinite(rows).all() for rows in answers.values()) else None


def _load(perturbed: onnx.ModelProto | Path) -> onnx.ModelProto:
    # Without its weights: what is in a file beside the graph is read when a part is opened.
    return onnx.load(perturbed, load_external_data=False) if isinstance(perturbed, Path) else perturbed


def _black_image(model: onnx.ModelProto) -> Pixels:
    (image,) = (value for value in model.graph.input if value.name == IMAGE)
    height, width = (dimension.dim_value for dimension in image.type.tensor_type.shape.dim[1:3])
    return np.zeros((1, height, width, 3), np.uint8)
