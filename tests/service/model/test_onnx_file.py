"""Which files a graph reads weights from, compared with what the onnx package finds."""

import contextlib

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from service.model.onnx_file import NotOnnxError, external_files
from tests.conftest import graph_bytes


def elsewhere(name: str, file: str) -> TensorProto:
    """A tensor whose values are in another file."""
    tensor = numpy_helper.from_array(np.zeros(3, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": file, "offset": "0", "length": "12"}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def model_of(nodes: list[onnx.NodeProto], initialisers: list[TensorProto]) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph(nodes, "graph", [], [], initialisers))


def test_a_graph_with_its_weights_inside_names_no_file() -> None:
    """Nothing is taken for a file name in a graph without external data."""
    assert external_files(graph_bytes(perturbed=True)) == set()


def test_a_file_is_found_wherever_a_tensor_may_be() -> None:
    """As an initialiser, an attribute, in a subgraph of a subgraph, in a sparse tensor, and in a function."""
    constant = helper.make_node("Constant", [], ["c"], value=elsewhere("value", "attribute.md"))
    inner = helper.make_graph([constant], "inner", [], [], [elsewhere("w", "deep.json")])
    branch = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    outer = helper.make_graph([branch], "outer", [], [])
    model = model_of([helper.make_node("Loop", ["n"], ["z"], body=outer)], [elsewhere("first", "weights.bin")])
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(elsewhere("s", "sparse.csv"))
    function = model.functions.add()
    function.node.add().CopyFrom(helper.make_node("Constant", [], ["f"], value=elsewhere("v", "function.svg")))
    expected = {"weights.bin", "attribute.md", "deep.json", "sparse.csv", "function.svg"}
    assert external_files(model.SerializeToString()) == expected


def test_a_graph_that_is_nested_without_end_is_refused() -> None:
    """A file made to exhaust the stack is refused with a reason."""
    graph = b""
    for _ in range(1000):  # Graph.node → Node.attribute → Attribute.g
        graph = _field(1, _field(5, _field(6, graph)))
    with pytest.raises(NotOnnxError, match="nested"):
        external_files(_field(7, graph))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    """Bytes that are not ONNX end in a set or in NotOnnxError, and in nothing else."""
    with contextlib.suppress(NotOnnxError):
        assert isinstance(external_files(content), set)


@given(st.data())
def test_a_cut_off_graph_never_names_other_files(data: st.DataObject) -> None:
    """A prefix of a good file is refused, or names some of its files."""
    whole = model_of([], [elsewhere("a", "a.bin"), elsewhere("b", "b.bin")]).SerializeToString()
    cut = data.draw(st.integers(0, len(whole)))
    with contextlib.suppress(NotOnnxError):
        assert external_files(whole[:cut]) <= {"a.bin", "b.bin"}


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
