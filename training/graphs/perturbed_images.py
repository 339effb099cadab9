"""A perturbed graph for several ε at once: the gradient direction of a batch is found once."""

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
    fixed_batch,
    open_runtime,
    open_session,
)
from training.graphs.gradient.cut import IMAGE, cut_at_direction
from training.graphs.run import open_graph

# Opens a part of the graph for the given outputs.
OpenPart = Callable[[onnx.ModelProto, tuple[str, ...]], OnnxSession]


@dataclass(frozen=True)
class PerturbedImages:
    """What the network answers for images perturbed by ε."""

    answer_session: OnnxSession
    # None: `answer_session` is the whole graph, which finds the gradient direction again for each ε.
    direction_session: OnnxSession | None

    def run(self, images: Pixels, epsilons: Sequence[float]) -> list[Outputs]:
        """The preprocessed outputs for each ε, with one row for each image."""
        # One batch at a time: the directions of a whole set would take four times the memory of its images.
        direction = {} if self.direction_session is None else self.direction_session.run(images)
        constants = [{"epsilon": np.asarray(epsilon, np.float32), **direction} for epsilon in epsilons]
        return [replace(self.answer_session, constants=values).run(images) for values in constants]


def open_perturbed_images(bundle: Bundle, device: Device, threads: int, max_batch: int) -> PerturbedImages:
    """A bundle's perturbed graph in two parts; as a whole where it cannot be cut."""

    def open_part(part: onnx.ModelProto, outputs: tuple[str, ...]) -> OnnxSession:
        providers = choose_providers(device, onnxruntime.get_available_providers())
        runtime = open_runtime(bundle, part.SerializeToString(), providers, threads)
        reported = runtime.get_providers()
        # No buckets: all batches but the last have the same size, and no request waits for a GPU to prepare.
        return OnnxSession(runtime, active_device(device, reported), reported, outputs, constants={})

    wanted = _preprocessed(expected_outputs(bundle, "perturbed"))
    parts = _in_parts(bundle.graph_path("perturbed"), wanted, open_part)
    if parts is not None:
        return parts
    whole = open_session(bundle, "perturbed", device, threads, max_batch)
    return PerturbedImages(answer_session=replace(whole, outputs=wanted), direction_session=None)


def perturbed_images_of(perturbed: onnx.ModelProto | Path) -> PerturbedImages:
    """The same on the CPU for a graph that may not be in a bundle yet: for calibration."""
    folder = perturbed.parent if isinstance(perturbed, Path) else None

    def open_part(part: onnx.ModelProto | Path, outputs: tuple[str, ...]) -> OnnxSession:
        runtime = open_graph(part, weights_in=folder)
        return OnnxSession(runtime, "cpu", [CPU], outputs, constants={}, max_batch=fixed_batch(runtime))

    wanted = _preprocessed(value.name for value in _load(perturbed).graph.output)
    parts = _in_parts(perturbed, wanted, open_part)
    return parts or PerturbedImages(answer_session=open_part(perturbed, wanted), direction_session=None)


def _preprocessed(outputs: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in outputs if name.endswith("_preprocessed"))


def _in_parts(
    perturbed: onnx.ModelProto | Path, wanted: tuple[str, ...], open_part: OpenPart
) -> PerturbedImages | None:
    """Both parts, if the graph can be cut and they answer for a black image."""
    try:
        model = _load(perturbed)
        cut = cut_at_direction(model, wanted)
        if cut is None or _takes_one_image(model):  # one image at a time, a batch has no direction that could be kept
            return None
        parts = PerturbedImages(
            answer_session=open_part(cut.answer_graph, wanted),
            direction_session=open_part(cut.direction_graph, (cut.direction,)),
        )
        (answers,) = parts.run(_black_image(model), [0.0])
    except (BundleError, DecodeError, *RUNTIME_ERRORS):
        return None  # opening the whole graph either works or raises the right error
    return parts if all(len(rows) == 1 and np.isfinite(rows).all() for rows in answers.values()) else None


def _load(perturbed: onnx.ModelProto | Path) -> onnx.ModelProto:
    # Without its weights: those in a file beside the graph are read when a part is opened.
    return onnx.load(perturbed, load_external_data=False) if isinstance(perturbed, Path) else perturbed


def _takes_one_image(model: onnx.ModelProto) -> bool:
    return _image_shape(model)[0] == 1


def _black_image(model: onnx.ModelProto) -> Pixels:
    height, width = _image_shape(model)[1:3]
    return np.zeros((1, height, width, 3), np.uint8)


def _image_shape(model: onnx.ModelProto) -> list[int]:
    """The shape of the input `image`, with 0 for a dimension that is not fixed."""
    (image,) = (value for value in model.graph.input if value.name == IMAGE)
    return [dimension.dim_value for dimension in image.type.tensor_type.shape.dim]
