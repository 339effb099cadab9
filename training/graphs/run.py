"""Runs ONNX graphs on the CPU, a batch at a time; needs ONNX Runtime and no torch."""

from pathlib import Path
from typing import overload

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from service.model.bundle import Input
from service.model.images import Pixels, fit_array
from service.model.session import fixed_batch
from training.data.folder import FolderImages
from training.graphs.progress import images_done

AnyImages = Pixels | FolderImages  # uint8 [N,H,W,3], in memory or decoded from disk when a batch needs them

# A model in memory has no folder of its own. ONNX Runtime knows this setting since 1.21.
EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
FORWARD_BATCH = 250
# The backward pass holds every activation of the batch: about 50 MB an image for WRN-28-10.
PERTURBED_BATCH = 50


def open_graph(model: onnx.ModelProto | Path, weights_in: Path | None = None) -> onnxruntime.InferenceSession:
    """A CPU session for a graph that may not be in a bundle yet: for calibration and for checks.

    `weights_in` is the folder of the weights file that a model in memory refers to.
    """
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if weights_in is not None:
        options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(weights_in.absolute()))
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_graph(
    session: onnxruntime.InferenceSession,
    images: AnyImages,
    batch: int | None = None,
    epsilon: float | None = None,
) -> dict[str, NDArray[np.float32]]:
    """Every output for every image, computed batch by batch; a perturbed graph needs its ε."""
    names = [output.name for output in session.get_outputs()]
    batch = fixed_batch(session) or batch or (FORWARD_BATCH if epsilon is None else PERTURBED_BATCH)
    constants = {} if epsilon is None else {"epsilon": np.asarray(epsilon, np.float32)}
    parts = []
    for start in range(0, len(images), batch):
        pixels = images[start : start + batch]
        parts.append(session.run(names, {"image": pixels, **constants}))
        images_done(len(pixels))
    return {name: np.concatenate([part[k] for part in parts]) for k, name in enumerate(names)}


@overload
def as_served(images: Pixels, target: Input) -> Pixels: ...
@overload
def as_served(images: FolderImages, target: Input) -> AnyImages: ...
def as_served(images: AnyImages, target: Input) -> AnyImages:
    """Images of any size, resized to the bundle's size by the code that serves."""
    if images.shape[1:3] == (target.height, target.width):
        return images
    return np.stack([fit_array(images[index], target) for index in range(len(images))])
