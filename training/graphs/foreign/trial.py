"""Runs graphs that may well fail: what ONNX Runtime says of them is raised, and never printed."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from service.model.images import Pixels
from service.model.session import CPU, RUN_OPTIONS, fixed_batch
from training.graphs.weights import find_weights, weights_folder

ERRORS_ONLY_RAISED = 4


def open_trial(source: onnx.ModelProto | str) -> onnxruntime.InferenceSession:
    """A graph in memory, or a file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY_RAISED
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_mem_pattern = False  # see `open_graph`
    options.add_session_config_entry("session.disable_prepacking", "1")  # for a few images it only takes memory
    if isinstance(source, onnx.ModelProto):
        find_weights(options, weights_folder(source))
    model = source if isinstance(source, str) else source.SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=[CPU])


def run_trial(
    session: onnxruntime.InferenceSession, images: Pixels, batch: int, **constants: NDArray[np.float32]
) -> list[NDArray[Any]]:
    """Every output for uint8 images, computed batch by batch."""
    batch = fixed_batch(session) or batch
    parts = [
        session.run(None, {"image": images[start : start + batch], **constants}, RUN_OPTIONS)
        for start in range(0, len(images), batch)
    ]
    return [np.concatenate(rows) for rows in zip(*parts, strict=True)]


def first_line(problem: Exception) -> str:
    """What an error says, without the trace that ONNX Runtime may add."""
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:300]
