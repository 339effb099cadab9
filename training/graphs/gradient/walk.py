"""Reverse-mode differentiation over ONNX nodes: each node on the path passes its gradient on to its inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import onnx

from training.graphs.gradient import rules
from training.graphs.gradient.builder import GradientError, GraphBuilder, NoRuleError, rule_name
from training.graphs.gradient.gelu import find_gelus

# Their derivative is zero almost everywhere, as in torch: what only they see of the image gets no gradient.
FLAT = frozenset({"Ceil", "Floor", "Hardmax", "Round", "Sign"})


def inputs_of(node: onnx.NodeProto) -> set[str]:
    """Every tensor that the node reads, also from inside the branches of an If or the body of a Loop."""
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            made = {name for inner in body.node for name in inner.output} | {value.name for value in body.input}
            made |= {tensor.name for tensor in body.initializer}
            read = {name for inner in body.node for name in inputs_of(inner)} | {value.name for value in body.output}
            names |= read - made
    return names


def nodes_between(nodes: Sequence[onnx.NodeProto], source: str, target: str) -> list[onnx.NodeProto]:
    """The nodes on a path from tensor `source` to tensor `target`, in their order."""
    reached = {source}
    for node in nodes:
        if reached & inputs_of(node):
            reached.update(name for name in node.output if name)
    needed = {target}
    path: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if needed.intersection(node.output) and reached & inputs_of(node):
            needed |= inputs_of(node)
            path.append(node)
    return path[::-1]


def append_gradient(graph: GraphBuilder, target: str, seed: str, source: str) -> str:
    """Append the nodes that carry `seed`, the gradient with respect to `target`, back to `source`; return its name.

    Every consumer of a tensor comes after it in the list. On the way back all gradients of a tensor are therefore
    known, and summed once, before its producer is reached.
    """
    path = nodes_between(list(graph.graph.node)[: len(graph.forward_nodes)], source, target)
    differentiable = check_rules(graph, path, source)
    gelus = find_gelus(graph, path)
    gradients: defaultdict[str, list[str]] = defaultdict(list, {target: [seed]})

    for forward_node in reversed(path):
        # A GELU that the exporter wrote as five nodes is differentiated as one; its inner nodes get no gradient.
        node = gelus.get(forward_node.output[0], forward_node)
        wanted = frozenset(index for index, name in enumerate(node.input) if name in differentiable)
        if not wanted or not any(name in gradients for name in node.output):
            continue
        step = rules.Step(graph, node, [_total(graph, gradients, name) for name in node.output], wanted)
        for index, gradient in _gradients_of_inputs(step).items():
            if index in wanted:
                gradients[node.input[index]].append(gradient)

    total = _total(graph, gradients, source)
    if total is None:
        raise GradientError(_no_gradient(path, differentiable, source, target))
    return total


def _gradients_of_inputs(step: rules.Step) -> dict[int, str]:
    try:
        return rules.RULES[rule_name(step.node)](step)
    except NoRuleError:
        raise
    except GradientError as problem:
        raise NoRuleError(step.node, str(problem)) from problem
    except Exception as problem:
        # Graphs come from anywhere. Whatever a rule trips over, the bundle can do without input preprocessing.
        raise NoRuleError(step.node, f"its rule failed with {type(problem).__name__}: {problem}") from problem


def check_rules(graph: GraphBuilder, path: Iterable[onnx.NodeProto], source: str) -> set[str]:
    """The tensors that depend on `source` and carry a gradient; every node that makes one must have a rule."""
    reached, quantised = {source}, set[str]()
    for node in path:
        if not reached & inputs_of(node) or node.op_type in FLAT:
            continue
        if quantised.intersection(node.input) and node.op_type != "DequantizeLinear":
            raise NoRuleError(
                node, "it works on quantised values; only pairs of QuantizeLinear and DequantizeLinear do"
            )
        if node.op_type == "QuantizeLinear":
            quantised.add(node.output[0])
        carrying = {name for name in node.output if name and (name in quantised or graph.is_float(name))}
        if carrying and rule_name(node) not in rules.RULES:
            raise NoRuleError(node)
        reached |= carrying
    return reached


def _no_gradient(path: Iterable[onnx.NodeProto], differentiable: set[str], source: str, target: str) -> str:
    """Names the first node at which the gradient of every path ends."""
    for node in path:
        if differentiable.intersection(node.input) and node.op_type in FLAT | {"ArgMax", "ArgMin", "Cast"}:
            return (
                f"no gradient reaches {source!r} from {target!r}: {node.op_type} (node "
                f"{node.name or node.output[0]!r}) is constant almost everywhere"
            )
    return f"no gradient reaches {source!r} from {target!r}: no differentiable path leads there"


def _total(graph: GraphBuilder, gradients: dict[str, list[str]], name: str) -> str | None:
    parts = gradients.get(name, [])
    if len(parts) > 1:
        gradients[name] = [graph.op("Add" if len(parts) == 2 else "Sum", *parts)]
    return gradients[name][0] if parts else None
