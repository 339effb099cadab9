"""Input preprocessing as part of the exported graph: ONNX in, ONNX with a backward pass out.

    perturbed = add_input_preprocessing(onnx.load("model.onnx"))

x̃ = x − ε·sign(∇ₓ −log σ(z)) perturbs the normalised image x towards a higher confidence before it is scored again
(DeVries & Taylor 2018, section 3.1; ODIN, Liang et al. 2018, for a classifier without a confidence branch). ONNX
Runtime cannot differentiate, so the gradient consists of ordinary nodes: `walk` goes back over the forward nodes;
the modules `*_rules` know each operator's derivative; `builder` holds the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx
from onnx import TensorProto, helper

from training.graphs.gradient import (  # noqa: F401 (each registers its rules)
    activation_rules,
    elementwise_rules,
    gather_rules,
    matrix_rules,
    normalisation_rules,
    quantisation_rules,
    reduction_rules,
    shape_rules,
    window_rules,
)
from training.graphs.gradient.builder import GradientError, GraphBuilder, NoRuleError
from training.graphs.gradient.walk import append_gradient, check_rules, nodes_between
from training.graphs.weights import structure_of

__all__ = ["GradientError", "NoRuleError", "add_input_preprocessing", "check_operators"]

CONFIDENCE, LOGITS, EPSILON = "confidence_logit", "logits", "epsilon"


def add_input_preprocessing(
    forward: onnx.ModelProto, *, normalised: str = "normalised", temperature: float = 1000.0
) -> onnx.ModelProto:
    """The forward graph, its gradient, and a second forward pass on the perturbed image.

    The result takes one more input, `epsilon` (a float32 scalar, in units of the normalised image), and returns one
    more output: `confidence_logit_preprocessed`, or `logits_preprocessed` if the graph has no `confidence_logit`.
    `normalised` names the tensor that is perturbed. `temperature` only matters without a confidence branch.
    """
    with _explained():
        return _add_input_preprocessing(GraphBuilder(forward), normalised, temperature)


def check_operators(forward: onnx.ModelProto, *, normalised: str = "normalised") -> None:
    """Raises NoRuleError for an operator that `add_input_preprocessing` has no rule for, and builds nothing."""
    with _explained():
        graph = GraphBuilder(forward)
        check_rules(graph, nodes_between(graph.forward_nodes, normalised, _target(graph)), normalised)


@contextmanager
def _explained() -> Iterator[None]:
    """Makes every failure a GradientError: graphs come from anywhere, and a bundle can do without a perturbed graph."""
    try:
        yield
    except GradientError:
        raise
    except Exception as problem:
        raise GradientError(f"the graph cannot be analysed ({type(problem).__name__}: {problem})") from problem


def _add_input_preprocessing(graph: GraphBuilder, normalised: str, temperature: float) -> onnx.ModelProto:
    target = _target(graph)
    gradient = _append_gradient(graph, target, normalised, temperature)
    graph.graph.input.append(helper.make_tensor_value_info(EPSILON, TensorProto.FLOAT, []))
    perturbed = graph.op("Add", normalised, graph.op("Mul", EPSILON, graph.op("Sign", gradient)))
    output = f"{target}_preprocessed"
    _append_second_pass(graph, {normalised: perturbed, target: output})
    clean = next(value for value in graph.graph.output if value.name == target)
    graph.graph.output.append(onnx.ValueInfoProto(name=output, type=clean.type))
    onnx.checker.check_model(structure_of(graph.model))
    return graph.model


def _target(graph: GraphBuilder) -> str:
    outputs = [value.name for value in graph.graph.output]
    for name in (CONFIDENCE, LOGITS):
        if name in outputs:
            return name
    raise GradientError(f"the graph has neither {CONFIDENCE!r} nor {LOGITS!r} among its outputs {outputs}")


def _append_gradient(graph: GraphBuilder, target: str, normalised: str, temperature: float) -> str:
    produced = {name for node in graph.forward_nodes for name in node.output}
    if normalised not in produced | {value.name for value in graph.graph.input}:
        raise GradientError(f"the graph has no tensor {normalised!r}: name the normalised image")
    if graph.elem_type(normalised) != TensorProto.FLOAT:
        raise GradientError(f"tensor {normalised!r} is not float32")
    seed = _confidence_seed(graph) if target == CONFIDENCE else _largest_softmax_seed(graph, temperature)
    return append_gradient(graph, target, seed, normalised)


def _confidence_seed(graph: GraphBuilder) -> str:
    """1, not the derivative of log σ(z): it has the same sign, and does not vanish where σ(z) is close to 1."""
    one = helper.make_tensor("value", TensorProto.FLOAT, [1], [1.0])
    return graph.op("ConstantOfShape", graph.op("Shape", CONFIDENCE), value=one)


def _largest_softmax_seed(graph: GraphBuilder, temperature: float) -> str:
    """The logits' share in ∇ log p_max, divided by 1 − p_max: one-hot minus the softmax over the other classes.

    As above, dividing by a positive number changes no sign and keeps a saturated softmax from hiding the gradient.
    """
    if temperature <= 0:
        raise GradientError(f"temperature must be positive, not {temperature}")
    n_classes = graph.shape(LOGITS)[-1]
    if n_classes is None or n_classes < 2:
        raise GradientError(f"{LOGITS!r} must have a fixed number of classes, at least 2, not {n_classes}")
    predicted = graph.op("ArgMax", LOGITS, axis=-1, keepdims=1)
    is_predicted = graph.op("Equal", predicted, np.arange(n_classes, dtype=np.int64))
    others = graph.op(
        "Where", is_predicted, float(np.finfo(np.float32).min), graph.op("Div", LOGITS, float(temperature))
    )
    one_hot = graph.op("Cast", is_predicted, to=TensorProto.FLOAT)
    return graph.op("Div", graph.op("Sub", one_hot, graph.op("Softmax", others, axis=-1)), float(temperature))


def _append_second_pass(graph: GraphBuilder, renamed: dict[str, str]) -> None:
    """Copy the nodes between the two tensors of `renamed` onto their new names; weights and all else are shared."""
    source, target = renamed
    for node in nodes_between(graph.forward_nodes, source, target):
        for name in node.output:
            if name and name not in renamed:
                renamed[name] = graph.unique(f"preprocessed/{name}")
        copy = graph.graph.node.add()
        copy.CopyFrom(node)
        # Names must differ or be empty: "preprocessed/" alone would be the name of every copy of a node without one.
        copy.name = f"preprocessed/{node.name}" if node.name else ""
        copy.input[:] = [renamed.get(name, name) for name in node.input]
        copy.output[:] = [renamed.get(name, name) for name in node.output]
