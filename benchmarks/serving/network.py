"""The network that every server runs: `compact` at half width on 32×32 images, as a bundle and as an ONNX file.

Its weights are random, from a fixed seed: they change the answers but not the cost. At half width the network takes
about one millisecond per image on one thread: the overhead of a server is visible but does not dominate.
"""

import hashlib
import json
import warnings
from pathlib import Path

import torch

from service.model.bundle import Manifest, load_bundle, write_bundle
from service.model.manifest import MANIFEST
from training.graphs.from_torch import export_network
from training.networks import add_confidence_branch, build_network

NAME, VERSION, SIDE = "bench", 1, 32
WIDTHS = (32, 128, 128)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
# Source of the thresholds, labels and histograms: a bundle needs them, but their values do not matter here.
PATTERN = Path(__file__).parents[2] / "models" / "fashion_mnist" / "1"


def bench_bundle(models: Path) -> Path:
    """The bundle's folder MODELS/bench/1; writes the bundle if it is missing."""
    target = models / NAME / str(VERSION)
    if target.exists():
        return load_bundle(target).folder
    warnings.simplefilter("ignore")  # torch's exporter warns about itself
    torch.manual_seed(0)
    network = add_confidence_branch(build_network("compact", 10, SIDE, WIDTHS), (128,)).eval()
    graph = export_network(network, MEAN, STD, SIDE).SerializeToString()
    models.mkdir(parents=True, exist_ok=True)
    raw = json.loads((PATTERN / MANIFEST).read_text())
    forward = {"file": "model.onnx", "sha256": hashlib.sha256(graph).hexdigest(), "size": len(graph)}
    raw |= {"name": NAME, "version": VERSION, "graphs": {"forward": forward}, "external_data": [], "evaluation": []}
    raw["input"] |= {"width": SIDE, "height": SIDE}
    raw["scores"] = {name: raw["scores"][name] for name in ("confidence", "max_softmax")}
    manifest = Manifest.model_validate_json(json.dumps(raw))
    return write_bundle(models, manifest, {"model.onnx": graph}).folder
