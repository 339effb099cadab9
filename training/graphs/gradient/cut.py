"""A perturbed graph cut in two: one part finds the gradient direction, the other scores the perturbed image.

The direction does not depend on ε, and finding it takes two thirds of the time. For several ε of the same images the
first part runs once and the second once for each ε.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

IMAGE, EPSILON = "image", "epsilon"


@dataclass(frozen=True)
class CutGraph:
    """The two parts; `direction` is the tensor that the first returns and the second takes besides image and ε."""

    direction_graph: onnx.ModelProto
    answer_graph: onnx.ModelProto
    direction: str


def cut_at_direction(perturbed: onnx.ModelProto, outputs: Sequence[str]) -> CutGraph | None:
    """Cuts a graph made by `add_input_preprocessing`; None for a graph of another structure.

    `outputs` are those of the perturbed image. The weights of both parts stay where they are: weights in a file beside
    the graph are not loaded.
    """
    graph = perturbed.graph
    given = {value.name: value for value in graph.input}
    answered = {value.name: value for value in graph.output}
    step = perturbation(graph)
    if step is None or not {IMAGE, EPSILON} <= given.keys() or not answered.keys() >= set(outputs):
        return None
    normalised, direction = step
    # The direction has the shape of the image. Told so, ONNX Runtime optimises the second part as well as the whole.
    shape = _shape(perturbed, normalised)
    between = helper.make_tensor_value_info(direction, TensorProto.FLOAT, shape)
    return CutGraph(
        direction_graph=_part(perturbed, [given[IMAGE]], [between]),
        answer_graph=_part(perturbed, [given[IMAGE], given[EPSILON], between], [answered[name] for name in outputs]),
        direction=direction,
    )


def perturbation(graph: onnx.GraphProto) -> tuple[str, str] | None:
    """x and d of x + ε·d, the only place where ε is used; d must be a sign."""
    scaled = _only_user(graph, EPSILON)
    if scaled is None or scaled.op_type != "Mul":
        return None
    perturbed_image = _only_user(graph, scaled.output[0])
    if perturbed_image is None or perturbed_image.op_type != "Add":
        return None
    direction, normalised = _other(scaled, EPSILON), _other(perturbed_image, scaled.output[0])
    is_sign = any(node.op_type == "Sign" and direction in node.output for node in graph.node)
    return (normalised, direction) if is_sign else None


def _only_user(graph: onnx.GraphProto, name: str) -> onnx.NodeProto | None:
    users = [node for node in graph.node if name in node.input]
    shown = any(value.name == name for value in graph.output)
    return users[0] if len(users) == 1 and not shown else None


def _other(node: onnx.NodeProto, name: str) -> str:
    """The other one of a node's two operands."""
    first, second = node.input
    return str(second if first == name else first)


def _shape(model: onnx.ModelProto, name: str) -> list[int | str | None] | None:
    inferred = onnx.shape_inference.infer_shapes(model).graph
    for value in (*inferred.input, *inferred.value_info):
        if value.name == name and value.type.tensor_type.HasField("shape"):
            return [d.dim_value if d.HasField("dim_value") else "N" for d in value.type.tensor_type.shape.dim]
    return None


def _part(
    whole: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    """The nodes that lead from `inputs` to `outputs`, and the weights they use."""
    ready = {value.name for value in inputs}
    needed = {value.name for value in outputs} - ready
    nodes = []
    for node in reversed(whole.graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(name for name in node.input if name not in ready)
    part = onnx.ModelProto()
    part.CopyFrom(whole)
    part.graph.ClearField("value_info")
    for field, kept in (
        ("input", inputs),
        ("output", outputs),
        ("node", nodes[::-1]),
        ("initializer", [tensor for tensor in whole.graph.initializer if tensor.name in needed]),
    ):
        part.graph.ClearField(field)
        getattr(part.graph, field).extend(kept)
    return part
