"""What the tests of features and neighbours share: small classifiers that end in each kind of last layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS, CLASSES, SIZE = 6, 4, 8
IMAGES = np.random.default_rng(0).integers(0, 256, (9, SIZE, SIZE, 3), dtype=np.uint8)
_rng = np.random.default_rng(1)
WEIGHT = _rng.normal(size=(CHANNELS, CLASSES)).astype(np.float32)
BIAS = _rng.normal(size=CLASSES).astype(np.float32)
KERNEL = _rng.normal(size=(CHANNELS, 3, 3, 3)).astype(np.float32)


@dataclass
class Head:
    """Collects the nodes after the last feature map."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def op(self, op_type: str, *inputs: str, output: str | None = None, domain: str = "", **attributes: Any) -> str:
        name = output or f"tensor_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=f"at_{name}", domain=domain, **attributes))
        return name

    def pooled(self) -> str:
        return self.op("Flatten", self.op("GlobalAveragePool", "map"), output="pooled")


def classifier(build: Callable[[Head], object], dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """`image` → 3×3 Conv and ReLU → `map` [N,6,8,8] → what `build` adds, which must make `logits` [N,4]."""
    head = Head()
    scale, kernel = head.constant(np.full((1, 1, 1, 3), 1 / 255)), head.constant(KERNEL)
    scaled = head.op("Mul", head.op("Cast", "image", to=TensorProto.FLOAT), scale)
    head.op("Transpose", scaled, output="normalised", perm=[0, 3, 1, 2])
    activations = head.op("Relu", head.op("Conv", "normalised", kernel, pads=[1, 1, 1, 1]))
    head.op("Cast", activations, output="map", to=dtype)
    build(head)
    graph = helper.make_graph(
        head.nodes,
        "classifier",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", SIZE, SIZE, 3])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])],
        head.initializers,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, ir_version=9, opset_imports=opsets)


def gemm(head: Head) -> None:
    head.op("Gemm", head.pooled(), head.constant(WEIGHT.T), head.constant(BIAS), output="logits", transB=1)


def matmul_and_bias(head: Head) -> None:
    head.op("Add", head.constant(BIAS), head.op("MatMul", head.pooled(), head.constant(WEIGHT)), output="logits")


def transposed_weight(head: Head) -> None:
    """The weight is a Constant node behind a Transpose."""
    head.op("Constant", output="stored", value=numpy_helper.from_array(WEIGHT.T.copy()))
    head.op("MatMul", head.pooled(), head.op("Transpose", "stored", perm=[1, 0]), output="logits")


def channels_last(head: Head) -> None:
    """A network in NHWC: the layer reads each position, and the logits are averaged."""
    rows = head.op("Transpose", "map", perm=[0, 2, 3, 1])
    scores = head.op("MatMul", rows, head.constant(WEIGHT))
    head.op("ReduceMean", scores, head.constant([1, 2], np.int64), keepdims=0, output="logits")


def one_token(head: Head) -> None:
    """Features [N,1,D], as a transformer has them."""
    token = head.op("Unsqueeze", head.pooled(), head.constant([1], np.int64))
    head.op("Squeeze", head.op("MatMul", token, head.constant(WEIGHT)), head.constant([1], np.int64), output="logits")


def conv_after_pooling(head: Head) -> None:
    pooled = head.op("GlobalAveragePool", "map")
    head.op("Flatten", head.op("Conv", pooled, head.constant(WEIGHT.T[:, :, None, None])), output="logits")


def conv_before_pooling(head: Head) -> None:
    """SqueezeNet's end: a ReLU and the pooling follow the last layer."""
    scores = head.op("Relu", head.op("Conv", "map", head.constant(WEIGHT.T[:, :, None, None]), head.constant(BIAS)))
    head.op("Flatten", head.op("GlobalAveragePool", scores), output="logits")


def quantised(head: Head) -> None:
    """The QDQ form: features and weight are quantised, and dequantised before the layer reads them."""
    scale, zero = head.constant(0.02), head.constant(0, np.uint8)
    data = head.op(
        "DequantizeLinear", head.op("QuantizeLinear", head.pooled(), scale, zero), scale, zero, output="shown"
    )
    step = head.constant(0.03)
    weight = head.op("DequantizeLinear", head.constant(np.round(WEIGHT / 0.03), np.int8), step)
    head.op("MatMul", data, weight, output="product")
    scored = head.op("QuantizeLinear", "product", scale, zero)
    head.op("DequantizeLinear", scored, scale, zero, output="logits")


def long_tail(head: Head) -> None:
    """Scaling, a softmax written out by hand, and a reshape whose shape is read from the image."""
    scaled = head.op("Mul", head.op("Gemm", head.pooled(), head.constant(WEIGHT)), head.constant(0.5))
    axis = head.constant([1], np.int64)
    powers = head.op("Exp", head.op("Sub", scaled, head.op("ReduceMax", scaled, axis)))
    shares = head.op("Div", powers, head.op("ReduceSum", powers, axis))
    batch = head.op("Slice", head.op("Shape", "image"), head.constant([0], np.int64), axis)
    shape = head.op("Concat", batch, head.constant([CLASSES], np.int64), axis=0)
    head.op("Softmax", head.op("Reshape", shares, shape), output="logits", axis=-1)


HEADS = (gemm, matmul_and_bias, transposed_weight, channels_last, one_token, conv_after_pooling, conv_before_pooling)
HEADS += (quantised, long_tail)
