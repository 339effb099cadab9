"""Rules for matrix products and batch normalisation."""

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
    graph, (a, b) = step.graph, step.node.input
    rank_a, rank_b = len(graph.shape(a)), len(graph.shape(b))
    if min(rank_a, rank_b) < 2:
        raise NoRuleError(step.node, "one of its operands is a vector")

    def transposed(name: str, rank: int) -> str:
        return graph.op("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])

    out: dict[int, str] = {}
    if 0 in step.wanted:
        product = graph.op("MatMul", step.gradient, transposed(b, rank_b))
        out[0] = graph.sum_to(product, _batched(graph, step.y, a), a)
    if 1 in step.wanted:
        product = graph.op("MatMul", transposed(a, rank_a), step.gradient)
        out[1] = graph.sum_to(product, _batched(graph, step.y, b), b)
    return out


def _batched(graph: GraphBuilder, output: str, operand: str) -> Shape:
    """The operand's matrices, with the leading axes of the output."""
    return (*graph.shape(output)[:-2], *graph.shape(operand)[-2:])


@rule("BatchNormalization")
def _batch_normalization(step: Step) -> dict[int, str]:
    if step.attribute("training_mode", 0):
        raise NoRuleError(step.node, "it is in training mode")
    graph = step.graph
    scale, variance = step.node.input[1], step.node.input[4]
    deviation = graph.op("Sqrt", graph.op("Add", variance, float(step.attribute("epsilon", 1e-5))))
    n_spatial = len(graph.shape(step.x)) - 2
    per_channel = graph.op("Reshape", graph.op("Div", scale, deviation), [-1, *[1] * n_spatial])
    return {0: graph.op("Mul", step.gradient, per_channel)}
