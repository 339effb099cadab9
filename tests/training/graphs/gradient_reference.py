"""What the gradient tests share: a torch module as an ONNX graph, and what torch autograd says about it."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import nn

from training.graphs.gradient import EPSILON, add_input_preprocessing


def export(module: nn.Module, example: torch.Tensor, outputs: list[str], *, dynamo: bool = False) -> onnx.ModelProto:
    """The module as a graph from the float tensor `normalised` to `outputs`, at opset 18 with a dynamic batch.

    torch's older exporter is the default because it takes milliseconds, the newer one seconds.
    """
    file = io.BytesIO()
    names = {"input_names": ["normalised"], "output_names": outputs, "opset_version": 18}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both exporters use things that torch or Python deprecated
        if dynamo:
            batch = ({0: torch.export.Dim("N")},)
            program = torch.onnx.export(
                module.eval(), (example,), dynamo=True, dynamic_shapes=batch, verbose=False, **names
            )
            program.save(file)
        else:
            axes = {name: {0: "N"} for name in ("normalised", *outputs)}
            torch.onnx.export(module.eval(), (example,), file, dynamo=False, dynamic_axes=axes, **names)
    return onnx.ModelProto.FromString(file.getvalue())


def open_graph(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the graphs are small; threads would only wait for each other
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(graph: onnx.ModelProto | onnxruntime.InferenceSession, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    session = open_graph(graph) if isinstance(graph, onnx.ModelProto) else graph
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def input_gradient(forward: onnx.ModelProto, temperature: float = 1000.0) -> onnx.ModelProto:
    """The perturbed graph up to the gradient whose sign it takes, with that gradient as the output `gradient`.

    It is ∂z/∂x for a confidence logit z. For a classifier it is the gradient of log(p_max / (1 − p_max)).
    """
    model = add_input_preprocessing(forward, temperature=temperature)
    graph = model.graph
    (step,) = (node for node in graph.node if EPSILON in node.input)
    place = next(i for i, node in enumerate(graph.node) if node.op_type == "Sign" and node.output[0] in step.input)
    gradient = graph.node[place].input[0]
    del graph.node[place:]  # nodes are in topological order, and what follows works on the perturbed image
    graph.node.append(helper.make_node("Identity", [gradient], ["gradient"]))
    kept = {
        "input": [value for value in graph.input if value.name != EPSILON],
        "output": [value for value in graph.output if not value.name.endswith("_preprocessed")],
    }
    for field, values in kept.items():
        graph.ClearField(field)
        getattr(graph, field).extend(values)
    graph.output.append(helper.make_tensor_value_info("gradient", TensorProto.FLOAT, None))
    return model


def autograd(score: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """∂(sum of scores)/∂x; the scores of a batch are independent, so this is each image's own gradient."""
    x = x.detach().clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(score(x).sum(), x)
    return gradient


class Function(nn.Module):
    """A lambda as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Weighted(nn.Module):
    """One score per image: the layer's outputs, each with its own weight, so that no gradient equals another."""

    def __init__(self, layer: nn.Module, example: torch.Tensor) -> None:
        super().__init__()
        self.layer = layer.eval()
        self.weights = nn.Parameter(torch.randn(layer(example).flatten(1).shape[1], 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x).flatten(1) @ self.weights).squeeze(1)


def assert_gradient_equals_autograds(score: nn.Module, model: onnx.ModelProto) -> None:
    """Compares on two batches of different size, one of which is full of ties."""
    graph = open_graph(input_gradient(model))
    for x in (torch.randn(3, 8, 8, 8) * 2, torch.randint(-2, 3, (1, 8, 8, 8)).float() + 0.25):
        expected = autograd(score, x).numpy()
        found = run(graph, normalised=x.numpy())["gradient"]
        # Sums in another order: where memory happens to lie decides which kernel adds them up, in torch and in ours.
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())
