"""Graphs that do harm when they run: the tiny network of all tests, with a loop or an error before its logits."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import graph_bytes

TABLE_SIZE = 200


def endless(also_black: bool = False) -> bytes:
    """Loops for some centuries on every image that is not black, or on every one: also when it is loaded."""
    value, node = helper.make_tensor_value_info, helper.make_node
    body = helper.make_graph(
        [node("Identity", ["go_on"], ["goes_on"]), node("Mul", ["before", "one"], ["after"])],
        "body",
        [value("turn", TensorProto.INT64, []), value("go_on", TensorProto.BOOL, []), _any("before")],
        [value("goes_on", TensorProto.BOOL, []), _any("after")],
    )
    nodes = [
        node("Add", ["brightest", "least"], ["factor"]),
        node("Mul", ["factor", "many"], ["turns"]),
        node("Loop", ["turns", "", "quick"], ["logits"], body=body),
    ]
    constants = {"one": np.float32(1), "many": np.int64(2**50), "least": np.int64(also_black)}
    return _before_the_logits(nodes, constants)


def failing_on_bright_images() -> bytes:
    """ONNX Runtime fails on a batch with a brightness of 200 or more anywhere in it: a table has no such row."""
    nodes = [
        helper.make_node("Gather", ["table", "brightest"], ["factor"]),
        helper.make_node("Mul", ["quick", "factor"], ["logits"]),
    ]
    return _before_the_logits(nodes, {"table": np.ones(TABLE_SIZE, np.float32)})


def _any(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def _before_the_logits(nodes: list[onnx.NodeProto], constants: dict[str, object]) -> bytes:
    """The tiny network with `nodes` between its logits (`quick`) and the output; `brightest` is an int64."""
    model = onnx.load_from_string(graph_bytes())
    for node in model.graph.node:
        node.output[:] = ["quick" if name == "logits" else name for name in node.output]
    model.graph.node.append(helper.make_node("Cast", ["image"], ["whole"], to=TensorProto.INT64))
    model.graph.node.append(helper.make_node("ReduceMax", ["whole"], ["brightest"], keepdims=0))
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()
