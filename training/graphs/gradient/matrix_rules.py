"""Rules for matrix products."""

from __future__ import annotations

from training.graphs.gradient.builder import GraphBuilder, NoRuleError, Shape
from training.graphs.gradient.rules import Step, rule


@rule("Gemm")
def _gemm(step: Step) -> dict[int, str]:
    """Y = α·A'·B' + β·C, where a dash stands for "transposed, if its attribute says so"."""
    graph, g = step.graph, step.gradient
    a, b = step.node.input[:2]
    trans_a, trans_b = int(step.attribute("transA", 0)), int(step.attribute("transB", 0))
    alpha, beta = float(step.attribute("alpha", 1.0)), float(step.attribute("beta", 1.0))
    out: dict[int, str] = {}
    if 0 in step.wanted:
        first, second, t1, t2 = (b, g, trans_b, 1) if trans_a else (g, b, 0, 1 - trans_b)
        out[0] = graph.op("Gemm", first, second, alpha=alpha, transA=t1, transB=t2)
    if 1 in step.wanted:
        first, second, t1, t2 = (g, a, 1, trans_a) if trans_b else (a, g, 1 - trans_a, 0)
        out[1] = graph.op("Gemm", first, second, alpha=alpha, transA=t1, transB=t2)
    if 2 in step.wanted:
        scaled = g if beta == 1.0 else graph.op("Mul", g, beta)
        out[2] = graph.sum_to(scaled, graph.shape(step.y), step.node.input[2])
    return out


@rule("MatMul")
def _matmul(step: Step) -> dict[int, str]:
    """Y = A·B for each pair of matrices; a vector is a matrix of one row (A) or of one column (B)."""
    graph, (a, b), g = step.graph, step.node.input, step.gradient
    shape_a, shape_b, shape_y = (graph.shape(name) for name in (a, b, step.y))
    matrix_a, matrix_b = a, b
    if len(shape_a) == 1:
        shape_a, matrix_a = (1, *shape_a), graph.op("Unsqueeze", a, [0])
        place = -2 if len(shape_b) > 1 else -1
        shape_y = (*shape_y[: len(shape_y) + place + 1], 1, *shape_y[len(shape_y) + place + 1 :])
        g = graph.op("Unsqueeze", g, [place])
    if len(shape_b) == 1:
        shape_b, matrix_b = (*shape_b, 1), graph.op("Unsqueeze", b, [1])
        shape_y, g = (*shape_y, 1), graph.op("Unsqueeze", g, [-1])

    def transposed(name: str, rank: int) -> str:
        return graph.op("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])

    out: dict[int, str] = {}
    if 0 in step.wanted:
        product = graph.op("MatMul", g, transposed(matrix_b, len(shape_b)))
        out[0] = _as_operand(graph, product, (*shape_y[:-2], *shape_a[-2:]), a, 0)
    if 1 in step.wanted:
        product = graph.op("MatMul", transposed(matrix_a, len(shape_a)), g)
        out[1] = _as_operand(graph, product, (*shape_y[:-2], *shape_b[-2:]), b, -1)
    return out


def _as_operand(graph: GraphBuilder, product: str, shape: Shape, operand: str, vector_axis: int) -> str:
    """Sums over the leading axes along which the operand was repeated, and drops the axis that a vector got."""
    if len(graph.shape(operand)) > 1:
        return graph.sum_to(product, shape, operand)
    leading = list(range(len(shape) - 2))
    if leading:
        product = graph.op("ReduceSum", product, leading, keepdims=0)
    return graph.op("Squeeze", product, [vector_axis])


@rule("Einsum")
def _einsum(step: Step) -> dict[int, str]:
    """The gradient of an operand is the Einsum of the output's gradient and the other operands, with its own letters.

    A letter that occurs in this operand alone was summed over; one that occurs twice in it stood for a diagonal.
    """
    equation = step.attribute("equation", b"").decode().replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    if not arrow or "..." in equation:
        raise NoRuleError(step.node, f"its equation {equation!r} does not name all axes")
    out: dict[int, str] = {}
    for index in sorted(step.wanted):
        term, others = terms[index], [terms[i] for i in range(len(terms)) if i != index]
        if len(set(term)) < len(term) or set(term) - set("".join([output, *others])):
            raise NoRuleError(step.node, f"its equation {equation!r} sums one operand alone")
        operands = [step.gradient, *(name for i, name in enumerate(step.node.input) if i != index)]
        out[index] = step.graph.op("Einsum", *operands, equation=f"{','.join([output, *others])}->{term}")
    return out
