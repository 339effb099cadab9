"""The output of a foreign graph that holds a value for each class, and the logits behind it."""

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from training.errors import ExportError
from training.graphs.foreign.original import Answers

# What the values of an output are. `shares` are probabilities whose softmax is no node that could be taken off.
Values = Literal["logits", "softmax", "log_softmax", "shares"]
# What may lie between the softmax and the output: nothing that changes a value.
_PASSED = {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Dropout", "Transpose"}
_SMALLEST_SHARE = 1e-30  # above the smallest float32, so that its logarithm is finite


def choose_output(answers: Answers, classes: int, wanted: str | None) -> str:
    """The output with a value for each class: the one the user names, else the only one that fits."""
    if wanted is not None:
        if wanted not in answers:
            raise ExportError(f"--output {wanted} is no output of the graph, which has {_shown(answers)}.")
        if class_count(answers[wanted]) != classes:
            raise ExportError(_misfit({wanted: answers[wanted]}, classes))
        return wanted
    fitting = {name: values for name, values in answers.items() if class_count(values) == classes}
    if len(fitting) > 1:
        raise ExportError(
            f"{len(fitting)} outputs have a value for each of the {classes} labels: {_shown(fitting)}. Say which holds "
            "the logits or the softmax: --output NAME."
        )
    if not fitting:
        raise ExportError(_misfit(answers, classes))
    return next(iter(fitting))


def class_count(values: NDArray[np.generic]) -> int | None:
    """K of an output [N,K], [N,K,1,1] or [N,1,1,K]; None for another shape, or other values than numbers."""
    shape = [size for size in values.shape[1:] if size != 1]
    if not np.issubdtype(values.dtype, np.floating) or values.ndim not in (2, 3, 4) or len(shape) > 1:
        return None
    return shape[0] if shape else 1


def _misfit(answers: Answers, classes: int) -> str:
    found = {name: class_count(values) for name, values in answers.items()}
    counts = sorted({count for count in found.values() if count is not None and count > 1})
    if len(found) == 1 and counts:
        return (
            f"the graph has {counts[0]} classes (output {_shown(answers)}), but --labels names {classes}. Give "
            f"{counts[0]} labels, in the graph's order" + _about_background(counts[0], classes)
        )
    fitting = f" --labels with {' or '.join(map(str, counts))} names would fit one of them." if counts else ""
    return (
        f"no output has the shape [N,{classes}] or [N,{classes},1,1], a value for each of the {classes} labels; the "
        f"graph's outputs are {_shown(answers)}.{fitting} A detector or a segmenter is no classifier."
    )


def _about_background(found: int, classes: int) -> str:
    return "; the first may be a background class, as TensorFlow's models have." if found == classes + 1 else "."


def _shown(answers: Answers) -> str:
    return ", ".join(f"{name!r} [{','.join(map(str, ('N', *v.shape[1:])))}]" for name, v in answers.items()) or "none"


def values_of(model: onnx.ModelProto, output: str, answers: NDArray[np.floating]) -> Values:
    """What the values of an output are, by the node that makes them, else by the values themselves."""
    path = _path_to_activation(model.graph.node, output)
    op_type = path[-1].op_type if path else None
    if op_type == "Softmax":
        return "softmax"
    if op_type == "LogSoftmax":
        return "log_softmax"
    if op_type in ("Sigmoid", "HardSigmoid"):
        raise ExportError(
            f"the output {output!r} ends in a {op_type}, which answers for each class alone; the gate compares classes "
            "by a softmax. If exactly one class is right for each image, name the tensor before it: "
            f"--output {path[-1].input[0]}."
        )
    rows = np.asarray(answers, np.float64).reshape(len(answers), -1)
    if (rows >= 0).all() and np.allclose(rows.sum(axis=1), 1, atol=1e-3):
        return "shares"
    return "logits"


def end_in_logits(model: onnx.ModelProto, output: str, values: Values, classes: int, batch: int | str) -> None:
    """Makes `logits` float32 [N,K] the only output, in place; a final softmax is taken off."""
    graph, name = model.graph, output
    if values in ("softmax", "log_softmax"):
        *after, activation = _path_to_activation(graph.node, output)
        source = activation.input[0]
        if after:
            after[-1].input[0] = source
        else:
            name = source
    end = []
    if values == "shares":
        graph.initializer.append(numpy_helper.from_array(np.array(_SMALLEST_SHARE, np.float32), "end/smallest"))
    steps: list[tuple[str, dict[str, Any]]] = [("Flatten", {"axis": 1}), ("Cast", {"to": TensorProto.FLOAT})]
    steps += [("Max", {}), ("Log", {})] if values == "shares" else []
    for k, (op_type, attributes) in enumerate(steps):
        inputs = [name, "end/smallest"] if op_type == "Max" else [name]
        name = "logits" if k == len(steps) - 1 else f"end/{op_type.lower()}"
        end.append(helper.make_node(op_type, inputs, [name], name=f"end/{op_type.lower()}", **attributes))
    graph.node.extend(end)
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, classes]))


def drop_unused(graph: onnx.GraphProto) -> None:
    """Drops nodes and weights that lead to no output, in place."""
    needed, kept = {value.name for value in graph.output}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(_read_by(node))
    weights = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept[::-1])
    graph.initializer.extend(weights)


def _read_by(node: onnx.NodeProto) -> Iterable[str]:
    """What a node reads, also inside its branches and loops."""
    yield from node.input
    for attribute in node.attribute:
        for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            for inner_node in inner.node:
                yield from _read_by(inner_node)
            yield from (value.name for value in inner.output)


def _path_to_activation(nodes: Iterable[onnx.NodeProto], output: str) -> list[onnx.NodeProto]:
    """The nodes from the output back to the first that changes values; without that one if it is no activation."""
    made_by = {name: node for node in nodes for name in node.output}
    path, name = [], output
    while name in made_by:
        node = made_by[name]
        path.append(node)
        if node.op_type not in _PASSED:
            return path
        name = node.input[0]
    return []
