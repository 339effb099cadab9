"""What a graph computes for one image: counted, so that every machine gets the same number.

Multiply-adds alone would not do. A network for phones has few of them and takes its time to write and read tensors
between them, so that each value which a node writes counts like some multiply-adds.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path

import onnx

from training.graphs.measured_shapes import IMAGE, UNMEASURABLE, Shape, read_by, read_structure, shapes_of_one_image

# Work is in multiply-adds: so many take about as long as writing a value (docs/benchmarks.md, Counted work).
OF_A_VALUE = 30
# The input that holds a convolution's weights, and the one whose last dimension a matrix product sums over.
WEIGHTS_OF = {"Conv": 1, "ConvInteger": 1, "FusedConv": 1, "QLinearConv": 3}
MATRIX_PRODUCTS = frozenset({"MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul"})


def images_within(work: int, of_one: int | None, fewest: int, most: int) -> int:
    """How many images `work` is enough for, where one takes `of_one`; the fewest where that is not known."""
    return fewest if of_one is None else max(fewest, min(most, work // max(of_one, 1)))


def work_of_one_image(model: onnx.ModelProto | Path) -> int | None:
    """Multiply-adds of convolutions and matrix products, and every value that a node writes.

    Nodes that only read weights are left out: ONNX Runtime computes them once. None where the graph does not run with
    every tensor's shape asked for.
    """
    try:
        known, folder = read_structure(model)
        shapes: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in known.graph.initializer}
        shapes |= shapes_of_one_image(known, folder)
        of_image, work = {IMAGE}, 0
        for node in known.graph.node:
            if not of_image.isdisjoint(read_by(node)):
                of_image.update(node.output)
                work += multiply_adds(node, shapes)
                work += OF_A_VALUE * sum(prod(shapes.get(name, (0,))) for name in node.output)
    except UNMEASURABLE:
        return None
    return work


def multiply_adds(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Of a convolution or a matrix product; 0 of everything else."""
    made = prod(shapes.get(node.output[0], (0,)))
    if node.op_type in WEIGHTS_OF:
        return made * prod(shapes[node.input[WEIGHTS_OF[node.op_type]]][1:])
    if node.op_type == "ConvTranspose":
        return prod(shapes[node.input[0]]) * prod(shapes[node.input[1]][1:])
    if node.op_type in MATRIX_PRODUCTS:
        return made * shapes[node.input[0]][-1]
    if node.op_type == "Gemm":
        transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        return made * shapes[node.input[0]][0 if transposed else 1]
    return 0
