"""torch → ONNX with the contract's input and outputs.

Networks are exported from their normalised input; `with_image_input` then puts the conversion from uint8 pixels in
front.
"""

import warnings
from collections.abc import Sequence

import onnx
import torch
from torch import Tensor, nn

from training.graphs.image_input import NORMALISED, OPSET, with_image_input
from training.networks import Classifier


class NamedOutputs(nn.Module):
    """The network with plain tensors in a fixed order as outputs, which the exporter needs."""

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        logits, confidence_logit = self.network(x)
        return (logits,) if confidence_logit is None else (logits, confidence_logit)


def output_names(network: Classifier) -> list[str]:
    return ["logits"] if network.branch is None else ["logits", "confidence_logit"]


def export_network(network: Classifier, mean: Sequence[float], std: Sequence[float], size: int) -> onnx.ModelProto:
    """The forward graph: `image` uint8 [N,H,W,3] → `logits` [N,K] and, with a branch, `confidence_logit` [N]."""
    example = torch.zeros(2, 3, size, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own deprecations
        program = torch.onnx.export(
            NamedOutputs(network).eval(),
            (example,),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=[NORMALISED],
            output_names=output_names(network),
            dynamic_shapes=({0: torch.export.Dim("N")},),
        )
    assert program is not None
    return with_image_input(program.model_proto, mean, std)
