"""Tiny real bundles, built with onnx.helper in milliseconds, that every test of the service runs on.

The networks are readable: a class is recognised by its colour. `logits[k]` is the mean of channel k, scaled, so a
red image is "red"; the confidence logit is how far the brightest channel stands out, so a grey image is refused.
"""

import io
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, settings
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from service.model import bundle as contract
from service.model.scores import HISTOGRAM_EDGES, histogram
from service.model.typicality import quantiles_of
from service.web.keys import new_key
from tests.properties import USUAL
from tests.running_service import Service

ROOT = Path(__file__).parent.parent

# Property tests. `default` draws the same examples every time, so that a failure comes from the change and not from the
# day; `make fuzz` draws new ones with `fuzz`. Neither measures time: a busy machine is no failure.
ANY_SPEED: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", derandomize=True, max_examples=USUAL, **ANY_SPEED)
settings.register_profile("fuzz", derandomize=False, max_examples=10 * USUAL, print_blob=True, **ANY_SPEED)
settings.load_profile("default")

LABELS = ("red", "green", "blue")
SIDE = 8
EPSILON = 0.25


def _constant(name: str, value: Any, dtype: Any = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def _network(source: str, prefix: str, suffix: str) -> list[onnx.NodeProto]:
    """Nodes from float [N,H,W,3] to logits{suffix} and confidence_logit{suffix}."""
    node = helper.make_node
    return [
        node("ReduceMean", [source, "axes_hw"], [f"{prefix}mean"], keepdims=0),
        node("Mul", [f"{prefix}mean", "gain"], [f"logits{suffix}"]),
        node("ReduceMax", [f"{prefix}mean", "axes_c"], [f"{prefix}top"], keepdims=0),
        node("ReduceMean", [f"{prefix}mean", "axes_c"], [f"{prefix}middle"], keepdims=0),
        node("Sub", [f"{prefix}top", f"{prefix}middle"], [f"{prefix}stands_out"]),
        node("Mul", [f"{prefix}stands_out", "sharpness"], [f"{prefix}scaled"]),
        node("Sub", [f"{prefix}scaled", "offset"], [f"confidence_logit{suffix}"]),
    ]


def graph_bytes(
    *,
    perturbed: bool = False,
    confidence: bool = True,
    neighbours: bool = False,
    side: int = SIDE,
    gain: float = 10.0,
    batch: str | int = "N",
    classes: int = 3,
) -> bytes:
    """A forward graph, or with `perturbed` one that brightens its input by epsilon and looks again."""
    node, value = helper.make_node, helper.make_tensor_value_info
    nodes = [node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT), node("Div", ["pixels", "max"], ["x"])]
    nodes += _network("x", "first_", "")
    inputs = [value("image", TensorProto.UINT8, [batch, side, side, 3])]
    outputs = [value("logits", TensorProto.FLOAT, [batch, classes])]
    if confidence:
        outputs.append(value("confidence_logit", TensorProto.FLOAT, [batch]))
    if neighbours:  # what is bright is like the images the model knows
        nodes.append(node("Identity", ["first_top"], ["neighbour_similarity"]))
        outputs.append(value("neighbour_similarity", TensorProto.FLOAT, [batch]))
    if perturbed:
        inputs.append(value("epsilon", TensorProto.FLOAT, []))
        # The gradient is real: the brightest channel's mean grows with that channel, the others' shrink it.
        nodes += [node("Mul", ["x", "epsilon"], ["step"]), node("Add", ["x", "step"], ["moved"])]
        nodes += _network("moved", "second_", "_preprocessed")
        name, shape = ("confidence_logit", [batch]) if confidence else ("logits", [batch, classes])
        outputs.append(value(f"{name}_preprocessed", TensorProto.FLOAT, shape))
    initialisers = [
        _constant("axes_hw", [1, 2], np.int64),
        _constant("axes_c", [1], np.int64),
        _constant("max", 255.0),
        _constant("gain", gain),
        _constant("sharpness", 12.0),
        _constant("offset", 2.0),
    ]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, initialisers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def solid(colour: tuple[int, int, int] | int, size: tuple[int, int] = (SIDE, SIDE), kind: str = "PNG") -> bytes:
    """An encoded image of one colour."""
    file = io.BytesIO()
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(file, kind)
    return file.getvalue()


RED, GREEN, BLUE, GREY = solid((255, 0, 0)), solid((0, 255, 0)), solid((0, 0, 255)), solid(128)


def score_of(threshold: float, epsilon: float | None = None) -> dict[str, Any]:
    policy = {"expected_rejection_rate": 0.1, "n": 100, "how": "made up for tests"}
    policy["expected_rejection_interval"] = [0.04, 0.18]
    reference = {"edges": list(HISTOGRAM_EDGES), "counts": list(histogram(np.linspace(-3, 6, 100)))}
    score: dict[str, Any] = {
        "reference": reference,
        "policies": {
            "misclassified": {"threshold": threshold, "detection_error": 0.2, **policy},
            "tpr95": {"threshold": threshold + 4, **policy, "expected_rejection_rate": 0.05},
        },
    }
    return score if epsilon is None else {"epsilon": epsilon, **score}


def relative_score(threshold: float, location: float) -> dict[str, Any]:
    return {"display": {"location": location, "scale": 2.0}, **score_of(threshold)}


def _typicality(confidence: bool) -> dict[str, Any]:
    """An image is as unusual as its confidence, or its energy, is low among a hundred made-up ones."""
    first, values = ("confidence", np.linspace(-2, 6, 100)) if confidence else ("max_softmax", np.linspace(0, 9, 100))
    reference = {
        "n": 100,
        "components": {first: list(quantiles_of(values)), "energy": list(quantiles_of(np.linspace(1, 11, 100)))},
        "minimum": list(quantiles_of(np.linspace(0, 1, 100) ** 1.5)),
    }
    return {"typicality": reference, **score_of(-3.0)}


@dataclass
class BundleFolder:
    """A bundle on disk that a test may spoil."""

    folder: Path
    raw: dict[str, Any] = field(default_factory=dict)

    def rewrite(self, change: Callable[[dict[str, Any]], None]) -> None:
        raw = json.loads((self.folder / "bundle.json").read_text())
        change(raw)
        (self.folder / "bundle.json").write_text(json.dumps(raw))

    def replace_graph(self, graph: str, content: bytes) -> None:
        """Puts another graph in place, with its right hash and size, as a careless exporter would."""
        raw = json.loads((self.folder / "bundle.json").read_text())
        path = self.folder / raw["graphs"][graph]["file"]
        path.write_bytes(content)
        raw["graphs"][graph] = contract.HashedFile.of(path).model_dump()
        (self.folder / "bundle.json").write_text(json.dumps(raw))


def make_bundle(
    models: Path,
    name: str = "colours",
    version: int = 1,
    *,
    perturbed: bool = True,
    confidence: bool = True,
    neighbours: bool = False,
    all_scores: bool = False,
    side: int = SIDE,
    batch: str | int = "N",
    change: Callable[[dict[str, Any]], None] | None = None,
) -> BundleFolder:
    """Publishes a tiny bundle under `models` through the real writer; `all_scores` adds those that came later."""
    network: dict[str, Any] = {"confidence": confidence, "neighbours": neighbours, "side": side, "batch": batch}
    files = {"model.onnx": graph_bytes(**network)}
    if perturbed:
        files["perturbed.onnx"] = graph_bytes(perturbed=True, **network)
    models.mkdir(parents=True, exist_ok=True)
    sources = Path(tempfile.mkdtemp(dir=models.parent))
    for file, content in files.items():
        (sources / file).write_bytes(content)
    scores = {"max_softmax": score_of(1.0)}
    if confidence:
        scores["confidence"] = score_of(0.0)
    if perturbed and confidence:
        scores["confidence_preprocessed"] = score_of(0.5, EPSILON)
    elif perturbed:
        scores["odin"] = {"temperature": 10.0, **score_of(-0.5, EPSILON)}
    if all_scores:
        scores["energy"] = relative_score(5.0, 6.0)
        scores["max_logit"] = relative_score(4.0, 5.0)
        scores["typicality"] = _typicality(confidence)
    raw: dict[str, Any] = {
        "schema_version": 1,
        "name": name,
        "version": version,
        "created": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).isoformat(),
        "provenance": {"git_sha": "0" * 40, "recipe": "tiny", "seed": 1, "data": "colours"},
        "graphs": {
            graph: contract.HashedFile.of(sources / file).model_dump()
            for graph, file in zip(("forward", "perturbed"), files, strict=False)
        },
        "input": {"width": side, "height": side, "resize": "stretch", "interpolation": "bilinear"},
        "labels": list(LABELS),
        "temperature": 1.0,
        "scores": scores,
        "default": {"score": "confidence" if confidence else "max_softmax", "policy": "misclassified"},
        "evaluation": [{"metric": "accuracy", "data": "colours test", "value": 1.0, "n": 300}],
    }
    if change is not None:
        change(raw)
    manifest = contract.Manifest.model_validate_json(json.dumps(raw), strict=True)
    written = contract.write_bundle(models, manifest, {**files, "CARD.md": b"# tiny\n"})
    return BundleFolder(written.folder, raw)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """An empty folder for bundles."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def bundle_folder(models: Path) -> BundleFolder:
    """models/colours/1 with a confidence branch and a perturbed graph."""
    return make_bundle(models)


# An operator's key, and what sends it. Others need none on loopback while there is only this one.
OPERATOR, OPERATOR_LINE = new_key("operator", "admin")
ADMIN = {"X-API-Key": OPERATOR}


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service shared by tests that leave no trace: `colours` 1 and 2, and `plain`, a classifier without c."""
    models = tmp_path_factory.mktemp("shared") / "models"
    make_bundle(models)
    make_bundle(models, version=2, change=lambda raw: raw.update(temperature=2.0))
    make_bundle(models, "plain", confidence=False)
    limits = ("--max-images", "8", "--max-body-bytes", "300000")
    running = Service(models, "--default-model", "colours", *limits, "--api-keys", OPERATOR_LINE)
    yield running.wait_until_serving()
    assert running.stop() == 0


@pytest.fixture(scope="session")
def client(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=30, verify=False, trust_env=False) as session:
        yield session
