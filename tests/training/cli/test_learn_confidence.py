"""`confgate-train learn-confidence` gives runs, bundles and ONNX files a confidence, and leaves their answers alone."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from service.model.bundle import load_bundle
from service.model.session import open_session
from tests.training.command_line import Done, in_this_process, write_folder, write_set
from tests.training.data.test_user_folders import LABELS, model, write_flat, write_photos
from training.data.normalise import normalise
from training.data.seen import hashes_in, hashes_of
from training.graphs.run import open_graph, run_graph
from training.graphs.torch_layers import shown_layers
from training.learning.finished_run import TrainedRun, read_run
from training.networks import add_confidence_branch

__all__ = ["model"]  # a fixture
QUICK = ("--no-preprocessed", "--device", "cpu")
SMALL = ("--hidden", "16,8", "--views", 2)
FIT = (
    *("--set", "network.widths=[8,12,16]", "--set", "optimiser.epochs=3", "--set", "optimiser.batch_size=20"),
    *("--set", "augment.crop_padding=1", "--set", "augment.early_share=0"),
)


def learn(*arguments: object, check: bool = True) -> Done:
    return in_this_process("learn-confidence", *SMALL, *arguments, check=check)


def refused(*arguments: object) -> str:
    done = learn(*arguments, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def logits(bundle: Path, images: np.ndarray) -> np.ndarray:
    return run_graph(open_graph(onnx.load(bundle / "model.onnx")), images)["logits"]


@dataclass(frozen=True)
class OfARun:
    root: Path  # of the data
    run: Path
    bundle: Path
    said: str


@pytest.fixture(scope="module")
def of_a_run(tmp_path_factory: pytest.TempPathFactory) -> OfARun:
    """A classifier that was trained without a branch, and the bundle with its confidence."""
    root = write_set(tmp_path_factory.mktemp("data"), train=300)
    run, bundle = root / "run", root / "models" / "colours" / "1"
    data = ("--set", "data.dataset=colours", "--set", "data.validation=20", "--set", "data.calibration=100")
    in_this_process("fit", "compact-cifar10-baseline", *FIT, *data, "--data-root", root, "--out", run)
    night = write_flat(root / "night", 60)
    said = learn(run, "--data-root", root, "--ood", night, "--out", bundle).stdout
    return OfARun(root, run, bundle, said)


def branch_of(bundle: Path, run: TrainedRun) -> torch.nn.Module:
    """The run's network in torch, with the branch that the bundle's graph has."""
    network = run.network
    network.branch = None
    add_confidence_branch(network, (16, 8), layers=shown_layers(network, run.image_size))
    graph = onnx.load(bundle / "model.onnx").graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    linear = [node for node in graph.node if node.op_type == "Gemm" and node.name.startswith("branch/")]
    assert network.branch is not None
    layers = [layer for layer in network.branch if isinstance(layer, torch.nn.Linear)]
    for layer, node in zip(layers, linear, strict=True):
        weight, bias = (arrays[name] for name in node.input[1:])
        layer.weight.data, layer.bias.data = torch.from_numpy(weight.T.copy()), torch.from_numpy(bias.copy())
    return network.double().eval()


def test_confidence_and_its_preprocessed_form_are_those_of_torch(of_a_run: OfARun) -> None:
    """c of the served graph is torch's within 1e-4, and c̃ that of torch autograd, on test images."""
    bundle, run = load_bundle(of_a_run.bundle), read_run(of_a_run.run, of_a_run.root)
    network = branch_of(of_a_run.bundle, run)
    images = run.splits.test.images[:12]
    x = normalise(torch.from_numpy(images), torch.tensor(run.mean), torch.tensor(run.std)).double().requires_grad_()
    z = network(x).confidence_logit
    (direction,) = torch.autograd.grad(z.sum(), x)
    epsilon = 0.01
    with torch.no_grad():
        expected = network(x + epsilon * direction.sign()).confidence_logit.numpy()
    served = dict(open_session(bundle, "forward", device="cpu", max_batch=12).run(images))
    np.testing.assert_allclose(served["confidence_logit"], z.detach().numpy(), atol=1e-4)
    perturbed = run_graph(open_graph(onnx.load(bundle.graph_path("perturbed"))), images, epsilon=epsilon)
    assert np.abs(expected - z.detach().numpy()).max() > 1e-3
    np.testing.assert_allclose(perturbed["confidence_logit_preprocessed"], expected, atol=1e-4)


def test_the_classifier_answers_as_before(of_a_run: OfARun, tmp_path: Path) -> None:
    """Logits are those of `export` bit for bit, and the bundle has the scores of a confidence and its witnesses."""
    plain = tmp_path / "models" / "colours" / "2"
    in_this_process("export", of_a_run.run, "--data-root", of_a_run.root, "--out", plain)
    images = np.load(of_a_run.root / "colours.npz")["x_test"]
    np.testing.assert_array_equal(logits(of_a_run.bundle, images), logits(plain, images))
    scores = load_bundle(of_a_run.bundle).manifest.scores
    assert {"confidence", "confidence_preprocessed", "typicality", "certainty", "neighbours"} <= set(scores)
    assert "confidence" not in load_bundle(plain).manifest.scores


def test_it_says_what_the_confidence_is_worth(of_a_run: OfARun) -> None:
    """A table of AUROC on own mistakes and OOD images, a sentence for each, and the same in the card."""
    assert "AUROC, %" in of_a_run.said
    row = next(line for line in of_a_run.said.splitlines() if line.startswith("night (30)"))
    assert all(0 <= float(value) <= 100 for value in row.split("  ")[1:] if value.strip())
    assert "night (30): confidence is" in of_a_run.said
    assert "which the OOD images given decided" in of_a_run.said
    assert row in (of_a_run.bundle / "CARD.md").read_text()


def test_mistakes_are_those_of_a_layer_that_did_not_see_the_image(of_a_run: OfARun) -> None:
    """Of images that the classifier was trained on, both accuracies are told."""
    assert "of the images to learn from; it was trained on them" in of_a_run.said
    assert "a last layer that did not see an image is right about" in of_a_run.said


def test_a_bundle_gets_another_branch_in_place_of_its_own(of_a_run: OfARun) -> None:
    """The next version has the same logits, one confidence, and the commands that lead to both."""
    out = of_a_run.root / "models" / "colours" / "3"
    learn(of_a_run.bundle, "--data-root", of_a_run.root, "--budget", 0.5, "--seed", 1, "--out", out)
    images = np.load(of_a_run.root / "colours.npz")["x_test"]
    np.testing.assert_array_equal(logits(out, images), logits(of_a_run.bundle, images))
    names = [value.name for value in onnx.load(out / "model.onnx").graph.output]
    assert names.count("confidence_logit") == 1
    commands = load_bundle(out).manifest.provenance.commands
    assert [line.split()[1] for line in commands] == ["fit", "learn-confidence", "learn-confidence"]
    evaluated = of_a_run.root / "evaluated"
    night = of_a_run.root / "night"
    in_this_process("evaluate", out, "--data-root", of_a_run.root, "--ood", night, *QUICK, "--out", evaluated)
    assert (evaluated / "evaluation.json").is_file()


@dataclass(frozen=True)
class OfAFile:
    """An ONNX file, photos of its classes, and the bundle that learnt from four fifths of them."""

    model: Path
    photos: Path
    bundle: Path
    said: str


@pytest.fixture(scope="module")
def of_a_file(model: Path, tmp_path_factory: pytest.TempPathFactory) -> OfAFile:
    root = tmp_path_factory.mktemp("file")
    photos, bundle = write_photos(root / "photos", each=60), root / "models" / "colours" / "1"
    said = learn(model, *reading(), "--data", photos, "--out", bundle).stdout
    return OfAFile(model, photos, bundle, said)


def reading() -> tuple[object, ...]:
    return ("--labels", ",".join(LABELS), "--mean", 0, "--std", 1)


def test_a_file_answers_as_its_import(of_a_file: OfAFile, tmp_path: Path) -> None:
    """`import-onnx` of the same file gives the same logits; the branch is all that was added."""
    plain = tmp_path / "models" / "colours" / "1"
    in_this_process("import-onnx", of_a_file.model, *reading(), "--calibration", of_a_file.photos, "--out", plain)
    shape = load_bundle(plain).manifest.input
    images = np.random.default_rng(0).integers(0, 256, (5, shape.height, shape.width, 3), dtype=np.uint8)
    np.testing.assert_array_equal(logits(of_a_file.bundle, images), logits(plain, images))


def test_no_image_both_teaches_and_calibrates(of_a_file: OfAFile) -> None:
    """A fifth of --data is held out, and the bundle knows what taught it; `evaluate` finds the same fifth again."""
    manifest = load_bundle(of_a_file.bundle).manifest
    count = len(list(of_a_file.photos.rglob("*.*")))
    held_out = max(50, round(count / 5))
    assert f"{held_out} images of" in of_a_file.said
    assert f"on {held_out} labelled images held out of photos, fingerprint" in manifest.provenance.data
    assert len(hashes_in(load_bundle(of_a_file.bundle))) == count - held_out
    out = of_a_file.bundle.parent / "evaluated"
    test = write_photos(of_a_file.bundle.parent / "test", each=20, seed=500)
    night = write_flat(of_a_file.bundle.parent / "night", 24)
    in_this_process("evaluate", of_a_file.bundle, "--test", test, "--ood", night, *QUICK, "--out", out)
    assert json.loads((out / "evaluation.json").read_text())["groups"]


def test_images_that_teach_cannot_calibrate_or_test(of_a_file: OfAFile, tmp_path: Path) -> None:
    """--calibration or --test with images of --data is refused, and says which flag to change."""
    out = tmp_path / "models" / "colours" / "1"
    common = (of_a_file.model, *reading(), "--data", of_a_file.photos, "--out", out)
    assert "--calibration" in refused(*common, "--calibration", of_a_file.photos)
    others = write_photos(tmp_path / "others", each=30, seed=900)
    assert "--test" in refused(*common, "--calibration", others, "--test", of_a_file.photos)
    assert not out.exists()


def test_an_imported_bundle_keeps_its_calibration_images(of_a_file: OfAFile, tmp_path: Path) -> None:
    """With other images to learn from, thresholds are set and tested on those that the import was given."""
    first, second = (tmp_path / "models" / "colours" / str(version) for version in (1, 2))
    calibration, test = (
        write_photos(tmp_path / name, each=40, seed=seed) for name, seed in (("calibration", 700), ("own", 800))
    )
    given = ("--calibration", calibration, "--test", test)
    in_this_process("import-onnx", of_a_file.model, *reading(), *given, "--out", first)
    night = write_flat(tmp_path / "night", 24)
    learn(first, "--data", of_a_file.photos, "--ood", night, "--out", second)
    manifest = load_bundle(second).manifest
    assert "labelled images of calibration, fingerprint" in manifest.provenance.data
    assert any(figure.data == "own test" for figure in manifest.evaluation)
    out = tmp_path / "evaluated"
    in_this_process("evaluate", second, "--ood", night, *QUICK, "--out", out)
    assert (out / "evaluation.json").is_file()


def test_a_run_whose_photos_have_moved(tmp_path: Path) -> None:
    """--data says where the folder is now; the images are divided as they were for the training."""
    photos = write_folder(tmp_path / "photos", each=100)
    run, out = tmp_path / "run", tmp_path / "models" / "photos" / "1"
    in_this_process("fit", "compact-cifar10-baseline", "--data", photos, "--size", 12, *FIT, "--out", run)
    moved = tmp_path / "elsewhere"
    shutil.move(photos, moved)
    learn(run, "--data", moved, "--out", out)
    trained = read_run(run, tmp_path, moved).splits
    known = np.sort(hashes_of(trained.train.images, trained.input))
    np.testing.assert_array_equal(hashes_in(load_bundle(out)), known)


def test_what_cannot_be_learnt_from_is_refused_by_name(of_a_run: OfARun, of_a_file: OfAFile, tmp_path: Path) -> None:
    """Unlabelled or few images, no model, an option of another kind of model: one error each, with what to do."""
    out = ("--out", tmp_path / "models" / "colours" / "9")
    file = (of_a_file.model, *reading(), *out)
    assert "one sub-folder of images for each label" in refused(*file, "--data", write_flat(tmp_path / "flat", 60))
    assert "expected at least 100" in refused(*file, "--data", write_photos(tmp_path / "few", each=20))
    assert "Give --data" in refused(*file)
    assert "Give --labels" in refused(of_a_file.model, *out, "--data", of_a_file.photos)
    assert "neither a run.json nor a bundle.json" in refused(tmp_path, *out, "--data", of_a_file.photos)
    assert "--labels is for an ONNX file" in refused(of_a_run.bundle, *reading(), *out, "--data-root", of_a_run.root)
    assert "expected widths such as" in refused(*file, "--data", of_a_file.photos, "--hidden", "a,b")
