"""Shapes of tensors where shape inference gives up: read off while the graph runs.

torch's older exporter and TensorFlow's converters compute many sizes node by node, for example the padding of each
layer from the size of its input. ONNX's inference then knows neither the sizes nor how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from training.graphs.weights import find_weights, weights_folder

# Two sizes of a batch tell what depends on it. They have no common factor, and no half of one is the other.
BATCHES = (2, 5)


def measured_shapes(model: onnx.ModelProto, names: Iterable[str]) -> dict[str, tuple[int | None, ...]]:
    """The shapes of these tensors, with None where a size depends on the batch; empty if the graph does not run.

    `model` gets other outputs on the way: a copy would hold its weights once more.
    """
    wanted = sorted(set(names))
    del model.graph.output[:]
    for i, name in enumerate(wanted):
        model.graph.node.append(helper.make_node("Shape", [name], [f"measured/{i}"]))
        model.graph.output.append(helper.make_tensor_value_info(f"measured/{i}", TensorProto.INT64, None))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # Each shape is read as soon as its tensor exists: at the end, all tensors would be in memory together.
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.disable_prepacking", "1")  # two runs are not worth a copy of the weights
    find_weights(options, weights_folder(model))
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        runs = [session.run(None, _inputs(model, batch)) for batch in BATCHES]
    except Exception:  # noqa: BLE001 (ONNX Runtime has no common base class, and protobuf refuses graphs beyond 2 GB)
        return {}
    return {name: _shape(small, large) for name, small, large in zip(wanted, *runs, strict=True)}


def _shape(small: Sequence[int], large: Sequence[int]) -> tuple[int | None, ...]:
    return tuple(int(a) if a == b else None for a, b in zip(small, large, strict=True))


def _inputs(model: onnx.ModelProto, batch: int) -> dict[str, np.ndarray]:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = {}
    for value in model.graph.input:
        if value.name not in weights:
            tensor = value.type.tensor_type
            sizes = [d.dim_value if d.HasField("dim_value") else batch for d in tensor.shape.dim]
            inputs[value.name] = np.zeros(sizes, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return inputs
