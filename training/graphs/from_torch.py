"""torch → ONNX with the contract's input, checked against torch on every output.

Networks are exported from their normalised input; `with_image_input` then puts the conversion from uint8 pixels in
front of any such graph, so that the tensor between the two is always called `normalised`: the input
gradient starts there.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from service.model.session import EXTERNAL_DATA_FOLDER
from training.data.normalise import normalise
from training.errors import ExportError
from training.graphs.progress import images_done
from training.networks import Classifier

Layout = Literal["nchw", "nhwc"]

OPSET = 18
NORMALISED = "normalised"
PARITY_BATCHES = (1, 2, 7, 32)
TOLERANCE = 1e-4
FORWARD_BATCH = 250
# The backward pass holds every activation of the batch: of WRN-28-10 about 50 MB an image.
PERTURBED_BATCH = 50


class _NamedOutputs(nn.Module):
    """Plain tensors in a fixed order, as the exporter wants them."""

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        logits, confidence_logit = self.network(x)
        return (logits,) if confidence_logit is None else (logits, confidence_logit)


def output_names(network: Classifier) -> list[str]:
    return ["logits"] if network.branch is None else ["logits", "confidence_logit"]


def export_network(network: Classifier, mean: Sequence[float], std: Sequence[float], size: int) -> onnx.ModelProto:
    """The forward graph: `image` uint8 [N,H,W,3] → `logits` [N,K] and, with a branch, `confidence_logit` [N]."""
    example = torch.zeros(2, 3, size, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own deprecations
        program = torch.onnx.export(
            _NamedOutputs(network).eval(),
            (example,),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=[NORMALISED],
            output_names=output_names(network),
            dynamic_shapes=({0: torch.export.Dim("N")},),
        )
    assert program is not None
    return with_image_input(program.model_proto, mean, std)


def with_image_input(
    model: onnx.ModelProto, mean: Sequence[float], std: Sequence[float], layout: Layout = "nchw"
) -> onnx.ModelProto:
    """Replaces the float image input by `image` uint8 [N,H,W,3] and puts the normalisation inside the graph."""
    graph = model.graph
    height, width = image_size(model, layout)
    old = graph.input[0].name
    for node in graph.node:
        node.input[:] = [NORMALISED if name == old else name for name in node.input]
    scale = (1 / (255 * np.asarray(std, np.float64))).astype(np.float32).reshape(1, 1, 1, 3)
    shift = (-np.asarray(mean, np.float64) / np.asarray(std, np.float64)).astype(np.float32).reshape(1, 1, 1, 3)
    graph.initializer.extend(
        [numpy_helper.from_array(scale, "pixel_scale"), numpy_helper.from_array(shift, "pixel_shift")]
    )
    front = [
        helper.make_node("Cast", ["image"], ["pixels"], name="to_float", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["pixels", "pixel_scale"], ["scaled_pixels"], name="scale_pixels"),
    ]
    shifted = "shifted_pixels" if layout == "nchw" else NORMALISED
    front.append(helper.make_node("Add", ["scaled_pixels", "pixel_shift"], [shifted], name="shift_pixels"))
    if layout == "nchw":
        front.append(helper.make_node("Transpose", [shifted], [NORMALISED], name="channels_first", perm=[0, 3, 1, 2]))
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend(front + rest)
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", height, width, 3]))
    _forget_traces(model)
    onnx.checker.check_model(model, full_check=True)
    return model


def image_size(model: onnx.ModelProto, layout: Layout) -> tuple[int, int]:
    """Height and width of the one image input, which must have fixed ones and three channels."""
    if len(model.graph.input) != 1:
        names = [value.name for value in model.graph.input]
        raise ExportError(f"the graph has the inputs {names}, expected one image tensor.")
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    expected = "[N,3,H,W]" if layout == "nchw" else "[N,H,W,3]"
    channels, height, width = (1, 2, 3) if layout == "nchw" else (3, 1, 2)
    if len(shape) != 4 or shape[channels] != 3 or not shape[height] or not shape[width]:
        raise ExportError(f"the graph's input has shape {shape}, expected {expected} with fixed H and W.")
    return shape[height], shape[width]


def _forget_traces(model: onnx.ModelProto) -> None:
    """Drops the exporter's notes (stack traces with file names of this machine): they are nobody's business."""
    model.doc_string = ""
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for initializer in model.graph.initializer:
        del initializer.metadata_props[:]


def open_graph(
    model: onnx.ModelProto | Path, threads: int = 0, weights_in: Path | None = None
) -> onnxruntime.InferenceSession:
    """A CPU session for calibration and evaluation, before there is a bundle to open through the service.

    `weights_in` is the folder of the weights that a model in memory has in a file of their own.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if weights_in is not None:
        options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(weights_in.absolute()))
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_graph(
    session: onnxruntime.InferenceSession,
    images: NDArray[np.uint8],
    batch: int | None = None,
    epsilon: float | None = None,
) -> dict[str, NDArray[np.float32]]:
    """Every output for every image, a batch at a time; a perturbed graph needs its ε."""
    names = [output.name for output in session.get_outputs()]
    batch = batch or (FORWARD_BATCH if epsilon is None else PERTURBED_BATCH)
    constants = {} if epsilon is None else {"epsilon": np.asarray(epsilon, np.float32)}
    parts = []
    for start in range(0, len(images), batch):
        parts.append(session.run(names, {"image": images[start : start + batch], **constants}))
        images_done(len(images[start : start + batch]))
    return {name: np.concatenate([part[k] for part in parts]) for k, name in enumerate(names)}


@torch.no_grad()
def check_parity(
    model: onnx.ModelProto,
    network: Classifier,
    mean: Sequence[float],
    std: Sequence[float],
    images: NDArray[np.uint8],
    epsilon: float | None = None,
) -> float:
    """Largest difference between torch and ONNX Runtime over all outputs and batch sizes; too large is refused.

    With ε the model is a perturbed graph, whose answers for the image as it is must be the same ones.
    """
    session = open_graph(model)
    largest = 0.0
    for batch in PARITY_BATCHES:
        sample = images[np.arange(batch) % len(images)]
        normalised = normalise(torch.from_numpy(sample), torch.tensor(mean), torch.tensor(std))
        expected = _NamedOutputs(network).eval()(normalised)
        found = run_graph(session, sample, batch, epsilon)
        for name, reference in zip(output_names(network), expected, strict=True):
            if found[name].shape != tuple(reference.shape):
                raise ExportError(
                    f"output {name} at batch {batch} has shape {found[name].shape}, "
                    f"torch gives {tuple(reference.shape)}."
                )
            scale = max(1.0, float(reference.abs().max()))
            largest = max(largest, float(np.abs(found[name] - reference.numpy()).max()) / scale)
    if not largest <= TOLERANCE:
        raise ExportError(f"the ONNX graph differs from torch by {largest:.2e}, expected at most {TOLERANCE:g}.")
    return largest
