"""Rules for quantised graphs (QDQ): the straight-through estimator.

Rounding has derivative zero almost everywhere, so the true gradient of a quantised network says nothing. As in
quantisation-aware training (Bengio et al. 2013, arXiv:1308.3432; torch's fake quantisation), a pair of QuantizeLinear
and DequantizeLinear counts as the identity within the range of its integers, and as a constant beyond it. Between the
two, the gradient is that of the dequantised value.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from training.graphs.gradient.builder import NoRuleError
from training.graphs.gradient.rules import Step, mask, rule


@rule("QuantizeLinear")
def _quantize(step: Step) -> dict[int, str]:
    graph = step.graph
    scale = _along_axis(step, step.node.input[1])
    ratio = graph.op("Div", step.x, scale)
    elem_type = graph.elem_type(step.y)
    integers = helper.tensor_dtype_to_np_dtype(elem_type)
    if integers not in (np.int8, np.uint8, np.int16, np.uint16):
        name = onnx.TensorProto.DataType.Name(elem_type).lower()
        raise NoRuleError(step.node, f"it quantises to {name}, expected 8 or 16 bits")
    if step.has_input(2):
        zero = graph.op("Cast", _along_axis(step, step.node.input[2]), to=onnx.TensorProto.FLOAT)
        ratio = graph.op("Add", ratio, zero)
    # Half a step beyond the last integer is still rounded to it.
    low, high = float(np.iinfo(integers).min) - 0.5, float(np.iinfo(integers).max) + 0.5
    inside = mask(graph, graph.op("Greater", ratio, low), graph.op("Less", ratio, high))
    return {0: graph.op("Mul", step.gradient, inside)}


@rule("DequantizeLinear")
def _dequantize(step: Step) -> dict[int, str]:
    if step.wanted != {0}:
        raise NoRuleError(step.node, "its scale depends on the image")
    return {0: step.gradient}


def _along_axis(step: Step, name: str) -> str:
    """Scales per channel, shaped to be divided by; a single one as it is."""
    shape = step.graph.shape(name)
    if not shape or shape == (1,):
        return name
    rank = len(step.graph.shape(step.x))
    axis = int(step.attribute("axis", 1)) % rank
    return step.graph.op("Reshape", name, [-1, *[1] * (rank - axis - 1)])
