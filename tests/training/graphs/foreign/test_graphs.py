"""What exporters leave in a graph: the bundle answers as ONNX Runtime does on the file itself."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.training.graphs.foreign import small_graphs
from tests.training.graphs.foreign.importing import (
    ToInput,
    bundle_answers,
    channels_first,
    channels_last,
    file_answers,
    images_for,
    imported,
    probabilities,
)
from tests.training.graphs.foreign.small_graphs import ending, plain

FREED = "made dynamic"

# How the graph is made, what its own input is made of, whether it ends in a softmax, what is said of it.
GRAPHS: dict[str, tuple[Callable[[Path], Path], ToInput, bool, str]] = {
    "IR 3, opset 9, fixed batch": (small_graphs.old_caffe, channels_first, True, FREED),
    "transformer, fixed batch": (small_graphs.transformer, channels_first, False, FREED),
    "Resize and Squeeze, fixed batch": (small_graphs.resized_and_squeezed, channels_first, False, FREED),
    "one at a time": (small_graphs.one_at_a_time, channels_first, False, "served one at a time"),
    "NHWC": (small_graphs.keras, channels_last, True, "nhwc"),
    "QDQ": (small_graphs.quantised, channels_first, False, "nchw"),
    "QLinearConv": (small_graphs.integer_convolution, channels_first, False, "no score odin (ODIN)"),
    "uint8": (small_graphs.from_bytes, lambda images: images.transpose(0, 3, 1, 2), False, "no score odin (ODIN)"),
    "com.microsoft": (small_graphs.contributed_operator, channels_first, False, "nchw"),
    "reserved names": (small_graphs.names_of_a_bundle, channels_first, False, "output 'logits'"),
    "weights in a file beside": (small_graphs.weights_beside, channels_first, False, "nchw"),
    "constant": (small_graphs.constant, channels_first, True, "nchw"),
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_peculiar_graphs_answer_as_before(tmp_path: Path, photos: Path, kind: str) -> None:
    """Each peculiarity is taken, said where it matters, and the served answers are those of the file."""
    make, to_input, ends_in_softmax, said = GRAPHS[kind]
    path = make(tmp_path / "model.onnx")
    bundle, output = imported(path, photos, tmp_path / "models" / "m" / "1")
    assert said in output
    assert "answers equal those of model.onnx" in output
    images = images_for(bundle)
    found = bundle_answers(bundle, images)
    found = probabilities(found) if ends_in_softmax else found
    expected = file_answers(path, images, to_input)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert bundle.manifest.max_batch == (1 if kind == "one at a time" else None)


def test_a_graph_in_float16_answers_as_before(tmp_path: Path, photos: Path) -> None:
    """Pixels are cast to float16 and logits back, with no more difference than float16 has."""
    path = small_graphs.half(tmp_path / "model.onnx")
    bundle, _ = imported(path, photos, tmp_path / "models" / "m" / "1")
    images = images_for(bundle)
    expected = file_answers(path, images, lambda rows: channels_first(rows).astype(np.float16))
    np.testing.assert_allclose(bundle_answers(bundle, images), expected, atol=1e-2 * np.abs(expected).max())


@pytest.mark.parametrize(
    "kind",
    ["N,K,1,1", "softmax, N,K,1,1", "N,1,1,K", "softmax, then Reshape and Identity", "log-softmax", "softmax in parts"],
)
def test_every_ending_becomes_logits(tmp_path: Path, photos: Path, kind: str) -> None:
    """Whatever the shape of the output and wherever its softmax is, the bundle's probabilities are the file's."""
    path = ending(tmp_path / "model.onnx", kind)
    bundle, output = imported(path, photos, tmp_path / "models" / "m" / "1")
    images = images_for(bundle)
    expected = file_answers(path, images)
    if kind == "log-softmax":
        expected = np.exp(expected)
    elif "softmax" not in kind:
        expected = probabilities(expected)
    np.testing.assert_allclose(probabilities(bundle_answers(bundle, images)), expected, atol=1e-5)
    assert ("their logarithms serve as logits" in output) == (kind == "softmax in parts")


def test_constant_answers_accept_everything_and_say_so(tmp_path: Path, photos: Path) -> None:
    """A gate cannot choose among equal scores: the default accepts all, with a warning."""
    path = small_graphs.constant(tmp_path / "model.onnx")
    bundle, output = imported(path, photos, tmp_path / "models" / "m" / "1")
    assert bundle.manifest.default.policy == "accept_all"
    assert "accept_all" in output


def test_weights_that_are_listed_as_inputs_may_be_few(tmp_path: Path, photos: Path) -> None:
    """A second input with a value of its own is a constant, not a second image."""
    from onnx import TensorProto, helper

    flag = helper.make_tensor_value_info("w0", TensorProto.FLOAT, [4, 3, 3, 3])
    path = plain(tmp_path / "model.onnx", more_inputs=(flag,))
    bundle, _ = imported(path, photos, tmp_path / "models" / "m" / "1")
    images = images_for(bundle)
    np.testing.assert_allclose(bundle_answers(bundle, images), file_answers(path, images), rtol=1e-4, atol=1e-4)
