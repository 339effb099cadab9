"""The features that a network's body gives for many images, computed by ONNX Runtime as a bundle computes them."""

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from torch import nn

from training.errors import ExportError
from training.graphs.from_torch import export_network
from training.graphs.image_views import AnyImages
from training.graphs.progress import counting_images
from training.graphs.run import open_graph, run_graph
from training.networks import Classifier


class BodyFeatures:
    """A body as a graph that is kept in memory."""

    def __init__(self, console: Console, network: Classifier, mean: list[float], std: list[float], size: int) -> None:
        body = Classifier(network.body.eval(), nn.Identity(), network.feature_width)
        try:
            graph = export_network(body, mean, std, size)
        except Exception as problem:
            what = f"{type(problem).__name__}: {problem}".strip().splitlines()[0]
            raise ExportError(
                f"torch cannot export this network to ONNX ({what}), so its features cannot be computed, and there "
                f"would be no bundle of it. Choose another network: --weights torchvision:NAME or timm:NAME."
            ) from problem
        self._session, self._console = open_graph(graph), console

    def __call__(self, images: AnyImages, what: str) -> NDArray[np.float32]:
        """[N,D]."""
        with counting_images(self._console, f"features of the {what} images"):
            return run_graph(self._session, images)["logits"]
