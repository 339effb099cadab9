"""Reverse-mode differentiation over ONNX nodes: each node on the path passes its gradient on to its inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import onnx

from training.graphs.gradient import rules
from training.graphs.gradient.builder import GradientError, GraphBuilder, NoRuleError
from training.graphs.gradient.gelu import find_gelus


def nodes_between(nodes: Sequence[onnx.NodeProto], source: str, target: str) -> list[onnx.NodeProto]:
    """The nodes on a path from tensor `source` to tensor `target`, in their order."""
    reached = {source}
    for node in nodes:
        if reached.intersection(node.input):
            reached.update(name for name in node.output if name)
    needed = {target}
    path: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if needed.intersection(node.output) and reached.intersection(node.input):
            needed.update(node.input)
            path.append(node)
    return path[::-1]


def append_gradient(graph: GraphBuilder, target: str, seed: str, source: str) -> str:
    """Append the nodes that carry `seed`, the gradient with respect to `target`, back to `source`; return its name.

    Every consumer of a tensor comes after it in the list. On the way back all gradients of a tensor are therefore
    known, and summed once, before its producer is reached.
    """
    path = nodes_between(list(graph.graph.node)[: len(graph.forward_nodes)], source, target)
    differentiable = _differentiable_tensors(graph, path, source)
    gelus = find_gelus(graph, path)
    gradients: defaultdict[str, list[str]] = defaultdict(list, {target: [seed]})

    for forward_node in reversed(path):
        # A GELU that the exporter wrote as five nodes is differentiated as one; its inner nodes get no gradient.
        node = gelus.get(forward_node.output[0], forward_node)
        wanted = frozenset(index for index, name in enumerate(node.input) if name in differentiable)
        if not wanted or not any(name in gradients for name in node.output):
            continue
        step = rules.Step(graph, node, [_total(graph, gradients, name) for name in node.output], wanted)
        for index, gradient in rules.RULES[_rule_name(node)](step).items():
            if index in wanted:
                gradients[node.input[index]].append(gradient)

    total = _total(graph, gradients, source)
    if total is None:
        raise GradientError(f"no gradient reaches {source!r} from {target!r}: no differentiable path leads there")
    return total


def _rule_name(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _differentiable_tensors(graph: GraphBuilder, path: Iterable[onnx.NodeProto], source: str) -> set[str]:
    """The floating-point tensors that depend on `source`; every node that makes one must have a rule."""
    reached = {source}
    for node in path:
        if reached.intersection(node.input):
            floats = {name for name in node.output if name and graph.is_float(name)}
            if floats and _rule_name(node) not in rules.RULES:
                raise NoRuleError(node)
            reached |= floats
    return reached


def _total(graph: GraphBuilder, gradients: dict[str, list[str]], name: str) -> str | None:
    parts = gradients.get(name, [])
    if len(parts) > 1:
        gradients[name] = [graph.op("Add" if len(parts) == 2 else "Sum", *parts)]
    return gradients[name][0] if parts else None
