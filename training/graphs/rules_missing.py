"""Says before a training whether its bundle can have input preprocessing."""

import tempfile
import warnings
from pathlib import Path

import onnx
import torch

from training.graphs.from_torch import NamedOutputs, export_network, output_names
from training.graphs.gradient import GradientError, check_operators
from training.graphs.image_input import NORMALISED, OPSET
from training.graphs.perturbed import no_perturbed_graph
from training.graphs.torch_layers import add_branch_of
from training.networks import Classifier, build_network
from training.recipe import Recipe

# The project's own networks consist of operators with rules; the tests hold that.
MAY_LACK_RULES = ("torchvision:", "timm:")
ANY_MEAN, ANY_STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


def note_before_training(recipe: Recipe, classes: int, size: int) -> str | None:
    """Names the operator that keeps the bundle of this training from having a perturbed graph; None if all is well.

    torch's older exporter is quick and says what is missing. Only if something is, the exporter that `export` uses,
    which takes many seconds, has the last word.
    """
    if not recipe.network.name.startswith(MAY_LACK_RULES):
        return None
    with torch.random.fork_rng(devices=[]):  # the training must draw the same numbers as without this
        network = build_network(recipe.network.name, classes, size, recipe.network.widths)
        add_branch_of(network, recipe.confidence, size)
    try:
        check_operators(_quick_export(network.eval(), size))
    except Exception:  # noqa: BLE001 (the older exporter fails in its own ways, and on networks that the newer one takes)
        return _note_of_slow_export(network, size)
    return None


def _note_of_slow_export(network: Classifier, size: int) -> str | None:
    try:
        forward = export_network(network, ANY_MEAN, ANY_STD, size)
    except Exception as problem:  # noqa: BLE001 (torch's exporters have no common base class)
        what = f"{type(problem).__name__}: {problem}".strip().splitlines()[0]
        return f"torch cannot export this network to ONNX ({what}): there will be no bundle of it"
    try:
        check_operators(forward)
    except GradientError as problem:
        return no_perturbed_graph(forward, problem)
    return None


def _quick_export(network: Classifier, size: int) -> onnx.ModelProto:
    """The graph without its weights."""
    names = output_names(network)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # the exporter warns about its own deprecation
        file = Path(folder, "graph.onnx")
        torch.onnx.export(
            NamedOutputs(network),
            (torch.zeros(1, 3, size, size),),
            file,
            dynamo=False,
            opset_version=OPSET,
            input_names=[NORMALISED],
            output_names=names,
            dynamic_axes={name: {0: "N"} for name in (NORMALISED, *names)},
            export_params=False,
            do_constant_folding=False,
        )
        return onnx.load(file)
