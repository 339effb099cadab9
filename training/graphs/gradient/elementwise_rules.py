"""Rules for arithmetic, element by element and with broadcasting: sums, products, powers, choices."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from training.graphs.gradient.builder import NoRuleError, Shape
from training.graphs.gradient.rules import Step, derivative, mask, rule


@derivative("Abs")
def _abs(step: Step) -> str:
    return step.graph.op("Sign", step.x)


@derivative("Exp")
def _exp(step: Step) -> str:
    return step.y


@derivative("Log")
def _log(step: Step) -> str:
    return step.graph.op("Reciprocal", step.x)


@derivative("Sin")
def _sin(step: Step) -> str:
    return step.graph.op("Cos", step.x)


@derivative("Cos")
def _cos(step: Step) -> str:
    return step.graph.op("Neg", step.graph.op("Sin", step.x))


@derivative("Erf")
def _erf(step: Step) -> str:
    bell = step.graph.op("Exp", step.graph.op("Neg", step.graph.op("Mul", step.x, step.x)))
    return step.graph.op("Mul", bell, 2 / math.sqrt(math.pi))


@derivative("Sqrt")
def _sqrt(step: Step) -> str:
    return step.graph.op("Div", 0.5, step.y)


@derivative("Reciprocal")
def _reciprocal(step: Step) -> str:
    return step.graph.op("Neg", step.graph.op("Mul", step.y, step.y))


@rule("Neg")
def _neg(step: Step) -> dict[int, str]:
    return {0: step.graph.op("Neg", step.gradient)}


@rule("Identity", "Dropout")
def _identity(step: Step) -> dict[int, str]:
    training = step.constant_input(2)
    if training is not None and training.any():
        raise NoRuleError(step.node, "it is in training mode")
    return {0: step.gradient}


@rule("Cast")
def _cast(step: Step) -> dict[int, str]:
    return {0: step.graph.op("Cast", step.gradient, to=step.graph.elem_type(step.x))}


def _broadcast(step: Step, gradients: dict[int, Callable[[], str]]) -> dict[int, str]:
    """Computes the wanted gradients and sums over the axes along which an operand was repeated."""
    shape: Shape = step.graph.shape(step.y)
    return {
        index: step.graph.sum_to(gradient(), shape, step.node.input[index])
        for index, gradient in gradients.items()
        if index in step.wanted
    }


@rule("Add", "Sum")
def _add(step: Step) -> dict[int, str]:
    return _broadcast(step, {index: lambda: step.gradient for index in range(len(step.node.input))})


@rule("Sub")
def _sub(step: Step) -> dict[int, str]:
    return _broadcast(step, {0: lambda: step.gradient, 1: lambda: step.graph.op("Neg", step.gradient)})


@rule("Mul")
def _mul(step: Step) -> dict[int, str]:
    a, b = step.node.input
    op = step.graph.op
    return _broadcast(step, {0: lambda: op("Mul", step.gradient, b), 1: lambda: op("Mul", step.gradient, a)})


@rule("Div")
def _div(step: Step) -> dict[int, str]:
    _, b = step.node.input
    op = step.graph.op

    def of_divisor() -> str:
        return op("Neg", op("Div", op("Mul", step.gradient, step.y), b))

    return _broadcast(step, {0: lambda: op("Div", step.gradient, b), 1: of_divisor})


@rule("Pow")
def _pow(step: Step) -> dict[int, str]:
    """Base and exponent may both depend on the image; zeros are treated as torch treats them."""
    graph, (base, exponent) = step.graph, step.node.input
    op = graph.op

    def of_base() -> str:
        known = graph.constant(exponent)
        if known is not None:
            powers = known.astype(np.float32)
            # x⁰ is constant: without this, 0·x⁻¹ would be undefined at x = 0.
            lowered: str | np.ndarray = np.where(powers == 0, np.float32(0), powers - 1)
            factor: str | np.ndarray = powers
        else:
            factor = op("Cast", exponent, to=graph.elem_type(base))
            lowered = op("Sub", factor, 1.0)
        return op("Mul", step.gradient, op("Mul", op("Pow", base, lowered), factor))

    def of_exponent() -> str:
        positive = op("Greater", base, 0.0)
        logarithm = op("Log", op("Where", positive, base, 1.0))
        return op("Mul", step.gradient, op("Mul", step.y, logarithm))

    return _broadcast(step, {0: of_base, 1: of_exponent})


@rule("Min", "Max")
def _extreme(step: Step) -> dict[int, str]:
    """Inputs that are equally extreme share the gradient, as for torch.minimum and torch.maximum."""
    graph, op = step.graph, step.graph.op
    chosen = [mask(graph, op("Equal", name, step.y)) for name in step.node.input]
    share = op("Div", step.gradient, op("Sum", *chosen))
    return _broadcast(step, {i: partial(op, "Mul", share, is_chosen) for i, is_chosen in enumerate(chosen)})


@rule("Where")
def _where(step: Step) -> dict[int, str]:
    """Where, not a product with a mask: what is not chosen may be infinite."""
    op, condition = step.graph.op, step.node.input[0]
    return _broadcast(
        step,
        {1: lambda: op("Where", condition, step.gradient, 0.0), 2: lambda: op("Where", condition, 0.0, step.gradient)},
    )
