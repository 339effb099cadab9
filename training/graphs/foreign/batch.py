"""A fixed batch size made dynamic: constants that hold the old size are rewritten.

An exporter that saw a batch of one wrote that 1 into shapes. Which shapes lead where is read from the graph by running
it once at its own batch size; whether the rewritten graph is right is for the caller to try.
"""

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from service.model.session import RUN_OPTIONS
from training.graphs.foreign.trial import open_trial


def free_batch(model: onnx.ModelProto, batch: int) -> None:
    """Rewrites what is fixed to `batch` images, in place; the graph's input is `image`, and shapes are inputs."""
    graph = model.graph
    moving = _depending_on(graph.node, "image")
    shapes = _shapes(model, batch, _asked_for(graph.node, moving))
    before: dict[int, list[onnx.NodeProto]] = {}
    for index, node in enumerate(graph.node):
        if node.op_type == "Reshape" and node.input[0] in moving and node.input[1] not in moving:
            _free_reshape(graph, node, shapes.get(node.output[0]), batch)
        elif node.op_type == "Squeeze" and node.input[0] in moving:
            _keep_first_axis(graph, node, shapes.get(node.input[0]))
        elif node.op_type == "Resize" and node.input[0] in moving:
            _free_resize(graph, node)
        elif node.op_type == "Gather" and batch == 1 and node.input[0] in moving and node.input[1] not in moving:
            before[index] = list(_free_flat_gather(graph, node, shapes))
        elif node.op_type == "Concat" and _axis(node, 0) % len(shapes.get(node.output[0], [0])) != 0:
            before[index] = list(_spread_constants(graph, node, moving, shapes, batch))
    if any(before.values()):
        nodes = [part for index, node in enumerate(graph.node) for part in (*before.get(index, []), node)]
        nodes = [*_batch_size(graph), *nodes]
        del graph.node[:]
        graph.node.extend(nodes)


def _depending_on(nodes: Iterable[onnx.NodeProto], source: str) -> set[str]:
    """The tensors that are computed from the image."""
    reached = {source}
    for node in nodes:
        if reached.intersection(node.input):
            reached.update(name for name in node.output if name)
    return reached


def _asked_for(nodes: Iterable[onnx.NodeProto], moving: set[str]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if node.op_type in ("Reshape", "Concat"):
            names.add(node.output[0])
        if node.op_type == "Squeeze":
            names.add(node.input[0])
        if node.op_type == "Gather" and node.input[0] in moving:
            names.update(node.input)
        if node.op_type == "Concat" and not moving.isdisjoint(node.input):
            names.update(node.input)
    return names


def _shapes(model: onnx.ModelProto, batch: int, names: set[str]) -> dict[str, list[int]]:
    """The shapes of tensors when the graph runs at its own batch size."""
    shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    produced = {name for node in model.graph.node for name in node.output}
    asked = sorted((names - shapes.keys()) & produced)
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    del shown.graph.output[:], shown.graph.value_info[:]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in asked)
    if not asked:
        return shapes
    size = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][1:]
    found = open_trial(shown).run(asked, {"image": np.zeros((batch, *size), np.uint8)}, RUN_OPTIONS)
    return shapes | {name: list(np.shape(values)) for name, values in zip(asked, found, strict=True)}


def _free_reshape(graph: onnx.GraphProto, node: onnx.NodeProto, shape: list[int] | None, batch: int) -> None:
    """The first axis, which holds the batch alone or with windows of the image, becomes whatever is left over."""
    if shape and shape[0] and shape[0] % batch == 0:
        node.input[1] = _int64s(graph, f"{node.output[0]}/free_shape", [-1, *shape[1:]])


def _free_flat_gather(
    graph: onnx.GraphProto, node: onnx.NodeProto, shapes: dict[str, list[int]]
) -> Iterable[onnx.NodeProto]:
    """Values picked from one flat row, as torch's exporter writes as_strided, are picked from a row for each image."""
    data, indices = node.input
    source = next((other for other in graph.node if data in other.output), None)
    users = sum(data in other.input for other in graph.node)
    picked = shapes.get(indices, [])
    if source is None or source.op_type != "Reshape" or users > 1 or _axis(node, 0) != 0:
        return
    if len(shapes.get(data, [])) != 1 or len(picked) < 2 or picked[0] != 1:
        return
    source.input[1] = _int64s(graph, f"{data}/free_rows", [-1, *shapes[data]])
    of_one = f"{node.output[0]}/of_one_image"
    first = _int64s(graph, f"{of_one}/axis", [0])
    yield helper.make_node("Squeeze", [indices, first], [of_one], name=of_one)
    node.input[1] = of_one
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("axis", 1))


def _keep_first_axis(graph: onnx.GraphProto, node: onnx.NodeProto, shape: list[int] | None) -> None:
    """A Squeeze that names no axes would remove the batch where it is 1, and no other."""
    if shape is not None and not (len(node.input) > 1 and node.input[1]):
        axes = [axis for axis, size in enumerate(shape) if size == 1 and axis > 0]
        node.input[:] = [node.input[0], _int64s(graph, f"{node.output[0]}/free_axes", axes)]


def _free_resize(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """A target size that names every axis, the batch too, names all but the batch."""
    sizes = next((t for t in graph.initializer if len(node.input) > 3 and t.name == node.input[3]), None)
    if sizes is None or any(attribute.name == "axes" for attribute in node.attribute):
        return
    values = numpy_helper.to_array(sizes).tolist()
    node.input[3] = _int64s(graph, f"{node.output[0]}/free_sizes", values[1:])
    node.attribute.append(helper.make_attribute("axes", list(range(1, len(values)))))


def _spread_constants(
    graph: onnx.GraphProto, node: onnx.NodeProto, moving: set[str], shapes: dict[str, list[int]], batch: int
) -> Iterable[onnx.NodeProto]:
    """A constant that is joined to each image, such as a class token, is repeated for as many images as there are."""
    if moving.isdisjoint(node.input):
        return
    for place, name in enumerate(node.input):
        shape = shapes.get(name, [])
        if name in moving or not shape or shape[0] != batch:
            continue
        once, tail = name, f"{name}/spread_{node.output[0]}"
        if batch > 1:
            once = f"{tail}/once"
            zero = _int64s(graph, f"{tail}/zero", [0])
            yield helper.make_node("Gather", [name, zero], [once], name=once, axis=0)
        ones = _int64s(graph, f"{tail}/ones", [1] * (len(shape) - 1))
        yield helper.make_node("Concat", ["free/batch", ones], [f"{tail}/shape"], name=f"{tail}/shape", axis=0)
        yield helper.make_node("Expand", [once, f"{tail}/shape"], [tail], name=tail)
        node.input[place] = tail


def _batch_size(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    zero = _int64s(graph, "free/zero", [0])
    return [
        helper.make_node("Shape", ["image"], ["free/image_shape"], name="free/image_shape"),
        helper.make_node("Gather", ["free/image_shape", zero], ["free/batch"], name="free/batch", axis=0),
    ]


def _axis(node: onnx.NodeProto, default: int) -> int:
    found = (a.i for a in node.attribute if a.name == "axis" and a.type == AttributeProto.INT)
    return next(found, default)


def _int64s(graph: onnx.GraphProto, name: str, values: list[int]) -> str:
    graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
    return name
