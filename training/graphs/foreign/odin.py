"""The ODIN graph of a foreign classifier, where its gradient can be written."""

import numpy as np
import onnx

from service.model.images import Pixels
from service.model.session import RUNTIME_ERRORS
from training.graphs.foreign.trial import first_line, open_trial, run_trial
from training.graphs.gradient import GradientError
from training.graphs.perturbed import perturbed_graph


def odin_graph(forward: onnx.ModelProto, images: Pixels, notes: list[str]) -> onnx.ModelProto | None:
    """The perturbed graph; None, with a note that says why, where there is none that runs."""
    try:
        perturbed = perturbed_graph(forward)
        answers = run_trial(open_trial(perturbed), images, len(images), epsilon=np.array(0.001, np.float32))
    except (GradientError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as problem:
        notes.append(f"no ODIN graph: {problem}")
        return None
    except RUNTIME_ERRORS as problem:
        notes.append(f"no ODIN graph: ONNX Runtime cannot run it ({first_line(problem)})")
        return None
    if not all(np.isfinite(rows).all() for rows in answers):
        notes.append("no ODIN graph: its gradient is not finite")
        return None
    return perturbed
