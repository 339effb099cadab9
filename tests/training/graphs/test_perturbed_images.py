"""Several ε of the same images: the answers of the whole perturbed graph, with the direction found once."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from service.cpus import usable_cpus
from service.errors import BundleError
from service.model.bundle import Bundle, HashedFile, load_bundle, write_bundle
from service.model.session import open_session
from tests.training.conftest import LIMIT
from tests.training.paper_data import TARGET
from training.calibration.epsilon import EPSILONS
from training.evaluation import outputs as outputs_module
from training.evaluation.in_distribution import in_distribution_of
from training.evaluation.measure import best_epsilon, measure_network
from training.evaluation.ood_sets import load_sets
from training.evaluation.outputs import BundleOutputs, ImageSet
from training.evaluation.scores import NetworkScores
from training.graphs.gradient.cut import cut_at_direction
from training.graphs.images_at_once import MOST_PERTURBED
from training.graphs.perturbed_images import PerturbedImages, open_perturbed_images, perturbed_images_of
from training.graphs.run import open_graph, run_graph

BRANCH, BASELINE = "compact-cifar10", "compact-cifar10-baseline"
SIZE = 12
SHIPPED = Path(__file__).parents[3] / "models"
NON_ZERO = EPSILONS[1:]


def noise(count: int, size: int = SIZE) -> ImageSet:
    return ImageSet("noise", np.random.default_rng(4).integers(0, 256, (count, size, size, 3), dtype=np.uint8))


def opened(bundle: Bundle) -> PerturbedImages:
    return open_perturbed_images(bundle, "cpu", usable_cpus(), MOST_PERTURBED)


def assert_answers_are_those_of_the_whole_graph(bundle: Bundle, folder: Path, images: ImageSet) -> None:
    outputs = BundleOutputs(bundle, folder, "cpu")
    outputs.prepare(images, EPSILONS)
    whole = open_session(bundle, "perturbed", "cpu", usable_cpus(), MOST_PERTURBED)
    for epsilon in NON_ZERO:
        at_epsilon = replace(whole, constants={"epsilon": np.asarray(epsilon, np.float32)})
        for name, rows in outputs.preprocessed(images, epsilon).items():
            assert name.endswith("_preprocessed")
            for start in range(0, len(images), MOST_PERTURBED):
                batch = slice(start, start + MOST_PERTURBED)
                np.testing.assert_array_equal(rows[batch], at_epsilon.run(images.images[batch])[name])


@pytest.mark.parametrize("recipe", [BRANCH, BASELINE])
def test_answers_are_bit_for_bit_those_of_the_whole_graph(reproduced, tmp_path, recipe):
    """A network with a branch and one for ODIN, at every ε of the grid, in a full batch and one that is not."""
    bundle = load_bundle(reproduced.bundle(recipe))
    assert opened(bundle).direction_session is not None
    assert_answers_are_those_of_the_whole_graph(bundle, tmp_path, noise(MOST_PERTURBED + 7))


@pytest.mark.parametrize("name", ["cifar10/1", "cifar10/5", "fashion_mnist/1"])
def test_shipped_bundles_can_be_cut(tmp_path, name):
    """Graphs as they ship, with their weights in a file of their own, two of them older than the cutting."""
    bundle = load_bundle(SHIPPED / name)
    assert bundle.manifest.external_data
    assert opened(bundle).direction_session is not None
    assert_answers_are_those_of_the_whole_graph(bundle, tmp_path, noise(3, bundle.manifest.input.width))


def test_a_graph_without_its_bundle_answers_alike(reproduced):
    """What calibration opens, a model in memory or a file with its weights beside it, answers as the whole graph."""
    for bundle in (load_bundle(reproduced.bundle(BASELINE)), load_bundle(SHIPPED / "cifar10/5")):
        path = bundle.graph_path("perturbed")
        images = noise(3, bundle.manifest.input.width).images
        whole = open_graph(path)
        for perturbed in (perturbed_images_of(path), perturbed_images_of(onnx.load(path))):
            assert perturbed.direction_session is not None
            for epsilon, found in zip(EPSILONS, perturbed.run(images, EPSILONS), strict=True):
                expected = run_graph(whole, images, epsilon=epsilon)
                for name, rows in found.items():
                    np.testing.assert_array_equal(rows, expected[name])


@dataclass
class Watched:
    """An ONNX Runtime session that remembers which images it was asked about."""

    runtime: Any
    batches: list[bytes] = field(default_factory=list)

    def run(self, outputs, inputs, options=None):
        self.batches.append(inputs["image"].tobytes())
        return self.runtime.run(outputs, inputs, options)


@pytest.fixture
def watched(monkeypatch) -> tuple[Watched, Watched]:
    """What finds directions and what answers, in every BundleOutputs of this test."""
    finding, answering = Watched(None), Watched(None)

    def open_watched(*arguments):
        perturbed = open_perturbed_images(*arguments)
        finding.runtime, answering.runtime = perturbed.direction_session.runtime, perturbed.answer_session.runtime
        return PerturbedImages(
            replace(perturbed.answer_session, runtime=answering), replace(perturbed.direction_session, runtime=finding)
        )

    monkeypatch.setattr(outputs_module, "open_perturbed_images", open_watched)
    return finding, answering


def test_the_search_for_epsilon_finds_each_direction_once(reproduced, tmp_path, watched):
    """Two sets of two batches each: four directions, and an answer for each at each of the six ε that move anything."""
    scores = NetworkScores(BundleOutputs(load_bundle(reproduced.bundle(BASELINE)), tmp_path, "cpu"))
    images = noise(2 * MOST_PERTURBED)
    best_epsilon("odin", scores, images, (ImageSet("other", images.images[::-1].copy()),))
    finding, answering = watched
    assert len(finding.batches) == 4
    assert len(answering.batches) == 4 * len(NON_ZERO)


def test_an_evaluation_finds_no_direction_twice(reproduced, tmp_path, watched, monkeypatch):
    """Sets that need different ε of the same test images get them from one pass."""
    bundle = load_bundle(reproduced.bundle(BRANCH))
    chosen = iter(NON_ZERO)
    monkeypatch.setattr("training.evaluation.measure.best_epsilon", lambda *_: next(chosen))
    measure_network(
        "branch",
        NetworkScores(BundleOutputs(bundle, tmp_path, "cpu")),
        in_distribution_of(bundle, reproduced.data, reproduced.run(BRANCH), LIMIT),
        load_sets(["tinyimagenet_crop", "all_images"], reproduced.data, TARGET, LIMIT),
        "per-set",
    )
    finding, answering = watched
    assert len(set(finding.batches)) == len(finding.batches) < len(answering.batches)


def test_only_the_epsilons_that_are_not_kept_are_computed(reproduced, tmp_path):
    """A second run goes on where the first ended, and says for which ε; a file that was cut off counts as none."""
    bundle, images = load_bundle(reproduced.bundle(BRANCH)), noise(60)
    said = []

    def prepared(*epsilons: float) -> BundleOutputs:
        said.clear()
        outputs = BundleOutputs(bundle, tmp_path, "cpu", lambda *what: said.append(what))
        outputs.prepare(images, epsilons)
        return outputs

    first = prepared(0.001, 0.002).preprocessed(images, 0.001)
    assert said == [("noise, ε = 0.001, 0.002", done, 60) for done in (0, 50, 60)]
    prepared(0.0, 0.001, 0.002)
    assert not said
    (kept,) = tmp_path.rglob("*epsilon-0.001-*.npz")
    kept.write_bytes(kept.read_bytes()[:100])
    again = prepared(0.001, 0.002, 0.004).preprocessed(images, 0.001)
    assert {what for what, _, _ in said} == {"noise, ε = 0.001, 0.004"}
    for name, rows in first.items():
        np.testing.assert_array_equal(again[name], rows)


def renamed_epsilon(model: onnx.ModelProto) -> None:
    """ε goes through a node of its own first."""
    for node in model.graph.node:
        node.input[:] = ["inner" if name == "epsilon" else name for name in node.input]
    model.graph.node.insert(0, helper.make_node("Identity", ["epsilon"], ["inner"]))


def answer_inside_a_branch(model: onnx.ModelProto) -> None:
    """The answer is read by a graph within the graph, which does not name it among its inputs."""
    (output,) = (value for value in model.graph.output if value.name.endswith("_preprocessed"))
    for node in model.graph.node:
        node.output[:] = ["inner" if name == output.name else name for name in node.output]
    shown = onnx.ValueInfoProto(name="shown", type=output.type)
    then = helper.make_graph([helper.make_node("Identity", ["inner"], ["shown"])], "then", [], [shown])
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(True), "always"))
    model.graph.node.append(helper.make_node("If", ["always"], [output.name], then_branch=then, else_branch=then))


def with_perturbed_graph(own: Bundle, graph: bytes, folder: Path) -> Bundle:
    """The same bundle around another perturbed graph."""
    changed = folder / "perturbed.onnx"
    changed.write_bytes(graph)
    graphs = own.manifest.graphs | {"perturbed": HashedFile.of(changed)}
    files = {file.file: own.folder / file.file for file in own.manifest.files}
    manifest = own.manifest.model_copy(update={"graphs": graphs})
    return write_bundle(folder / "models", manifest, files | {changed.name: changed})


@pytest.mark.parametrize(("change", "is_cut"), [(renamed_epsilon, False), (answer_inside_a_branch, True)])
def test_a_graph_that_cannot_be_cut_runs_whole(
    reproduced, tmp_path, change: Callable[[onnx.ModelProto], None], is_cut: bool
):
    """Somebody else's graph, where ε is not found or a part does not open, gives its answers all the same."""
    own = load_bundle(reproduced.bundle(BRANCH))
    model = onnx.load(own.graph_path("perturbed"), load_external_data=False)
    change(model)
    assert (cut_at_direction(model, ["confidence_logit_preprocessed"]) is not None) == is_cut
    bundle = with_perturbed_graph(own, model.SerializeToString(), tmp_path)
    assert opened(bundle).direction_session is None
    assert perturbed_images_of(bundle.graph_path("perturbed")).direction_session is None
    assert_answers_are_those_of_the_whole_graph(bundle, tmp_path / "scores", noise(20))


def test_what_is_no_graph_is_refused_as_by_the_service(reproduced, tmp_path):
    """The error for a perturbed graph that cannot be opened names its file."""
    bundle = load_bundle(reproduced.bundle(BRANCH))
    with pytest.raises(BundleError, match=r"perturbed\.onnx"):
        opened(with_perturbed_graph(bundle, b"not a graph", tmp_path))
