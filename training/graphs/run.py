"""Runs ONNX graphs on the CPU, a batch at a time; needs ONNX Runtime and no torch."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from service.model.session import fixed_batch
from training.graphs.image_views import AnyImages, batches_of
from training.graphs.images_at_once import MOST_FORWARD, MOST_PERTURBED
from training.graphs.progress import images_done, pass_begins
from training.graphs.weights import find_weights, weights_folder


def open_graph(model: onnx.ModelProto | Path, weights_in: Path | None = None) -> onnxruntime.InferenceSession:
    """A CPU session for a graph that may not be in a bundle yet: for calibration and for checks.

    `weights_in` is the folder of the weights file that a model in memory refers to, unless it says so itself.
    """
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # From its second run on, a session with memory patterns holds every tensor twice: once in blocks that the first run
    # left, and once in one block planned for them all.
    options.enable_mem_pattern = False
    if isinstance(model, onnx.ModelProto):
        find_weights(options, weights_in or weights_folder(model))
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_graph(
    session: onnxruntime.InferenceSession,
    images: AnyImages,
    batch: int | None = None,
    epsilon: float | None = None,
    step: str = "",
) -> dict[str, NDArray[np.float32]]:
    """Every output for every image, computed batch by batch; a perturbed graph needs its ε.

    `step` says in progress lines what the images are for.
    """
    names = [output.name for output in session.get_outputs()]
    found: dict[str, NDArray[np.float32]] = {}
    done = 0
    for rows in run_batches(session, names, images, batch, epsilon, step):
        for name, values in zip(names, rows, strict=True):
            # Filled, not joined at the end: for a moment everything would be there twice.
            if name not in found:
                found[name] = np.empty((len(images), *values.shape[1:]), values.dtype)
            found[name][done : done + len(values)] = values
        done += len(rows[0])
    return found


def run_batches(
    session: onnxruntime.InferenceSession,
    outputs: Sequence[str],
    images: AnyImages,
    batch: int | None = None,
    epsilon: float | None = None,
    step: str = "",
) -> Iterator[list[NDArray[np.float32]]]:
    """These outputs of one batch after the other; a graph that takes one image at a time gets one."""
    batch = fixed_batch(session) or batch or (MOST_FORWARD if epsilon is None else MOST_PERTURBED)
    constants = {} if epsilon is None else {"epsilon": np.asarray(epsilon, np.float32)}
    pass_begins(step, len(images))
    for pixels in batches_of(images, batch):
        rows = session.run(outputs, {"image": pixels, **constants})
        for name, values in zip(outputs, rows, strict=True):
            if values.ndim == 0 or len(values) != len(pixels):
                raise ValueError(f"output {name!r} has the shape {list(values.shape)} for {len(pixels)} images")
        yield rows
        images_done(len(pixels))
