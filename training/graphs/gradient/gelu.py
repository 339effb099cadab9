"""The exact GELU, x·Φ(x): recognised where an exporter spelt it out in five nodes, and differentiated in one piece.

Node by node, the chain rule would pass over the data three more times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import helper

from training.graphs.gradient.builder import GraphBuilder


def find_gelus(graph: GraphBuilder, nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    """For each tensor that is a GELU written with Erf: one Gelu node that can replace it in the walk.

    Besides its input x, such a node names two values that the forward pass has computed: x/√2 and 1 + erf(x/√2).
    """
    finder = _Finder(graph, {name: node for node in nodes for name in node.output})
    found = {}
    for node in finder.producers.values():
        inputs = finder.gelu_inputs(node) if node.op_type == "Mul" else None
        if inputs is not None:
            found[node.output[0]] = helper.make_node("Gelu", inputs, [node.output[0]], name=node.name)
    return found


class _Finder:
    def __init__(self, graph: GraphBuilder, producers: dict[str, onnx.NodeProto]) -> None:
        self.graph = graph
        self.producers = producers

    def gelu_inputs(self, node: onnx.NodeProto) -> tuple[str, str, str] | None:
        """x, x/√2 and 1 + erf(x/√2), if the node multiplies the first, the last and ½, in any order."""
        for inner, outer in (tuple(node.input), tuple(node.input)[::-1]):
            factors = [*(self._operands(inner, "Mul") or ()), outer]
            rest = [factor for factor in factors if not self._is_scalar(factor, 0.5)]
            if len(factors) != 3 or len(rest) != 2:
                continue
            for x, one_plus_erf in (rest, rest[::-1]):
                scaled = self._erf_argument(one_plus_erf)
                if scaled is not None and x == self._times_sqrt_half(scaled):
                    return x, scaled, one_plus_erf
        return None

    def _erf_argument(self, one_plus_erf: str) -> str | None:
        operands = self._operands(self._other_operand(one_plus_erf, "Add", 1.0), "Erf")
        return operands[0] if operands else None

    def _times_sqrt_half(self, scaled: str) -> str | None:
        numerator, divisor = self._operands(scaled, "Div") or ("", "")
        if self._is_scalar(divisor, math.sqrt(2)):
            return numerator
        return self._other_operand(scaled, "Mul", math.sqrt(0.5)) or None

    def _operands(self, name: str, op_type: str) -> tuple[str, ...] | None:
        node = self.producers.get(name)
        return tuple(node.input) if node is not None and node.op_type == op_type else None

    def _other_operand(self, name: str, op_type: str, scalar: float) -> str:
        """The operand beside a known scalar, which may be written first or second; empty if there is none."""
        first, second = self._operands(name, op_type) or ("", "")
        if self._is_scalar(second, scalar):
            return first
        return second if self._is_scalar(first, scalar) else ""

    def _is_scalar(self, name: str, value: float) -> bool:
        constant = self.graph.constant(name)
        return constant is not None and constant.size == 1 and bool(np.isclose(constant, value, rtol=1e-6).all())


def tanh_gelu_derivative(graph: GraphBuilder, x: str) -> str:
    """½(1 + t) + ½x(1 − t²)·s·(1 + 3·0.044715·x²) with t = tanh(s·(x + 0.044715·x³)) and s = √(2/π)."""
    slope = math.sqrt(2 / math.pi)
    square = graph.op("Mul", x, x)
    inner = graph.op("Mul", x, graph.op("Add", graph.op("Mul", square, 0.044715 * slope), slope))
    t = graph.op("Tanh", inner)
    inner_slope = graph.op("Add", graph.op("Mul", square, 3 * 0.044715 * slope), slope)
    bend = graph.op("Mul", graph.op("Sub", 1.0, graph.op("Mul", t, t)), graph.op("Mul", x, inner_slope))
    return graph.op("Mul", graph.op("Add", graph.op("Add", t, 1.0), bend), 0.5)


def gelu_derivative(graph: GraphBuilder, inputs: Sequence[str]) -> str:
    """Φ(x) + x·φ(x), written over u = x/√2: ½(1 + erf u) + u·exp(−u²)/√π."""
    if len(inputs) == 3:
        _, u, one_plus_erf = inputs
    else:
        u = graph.op("Mul", inputs[0], math.sqrt(0.5))
        one_plus_erf = graph.op("Add", graph.op("Erf", u), 1.0)
    bell = graph.op("Exp", graph.op("Neg", graph.op("Mul", u, u)))
    slope = graph.op("Mul", graph.op("Mul", u, 2 / math.sqrt(math.pi)), bell)
    return graph.op("Mul", graph.op("Add", one_plus_erf, slope), 0.5)
