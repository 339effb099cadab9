"""`evaluate` and `report` of bundles from anywhere: imported, calibrated on a folder, or still a training run."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

from service.model.bundle import load_bundle
from tests.training.command_line import in_this_process as confgate_train
from tests.training.conftest import LIMIT
from tests.training.data.test_user_folders import LABELS, model, write_flat, write_photos
from training.calibration.open_graphs import OpenGraphs
from training.data.labelled_folder import read_for_model
from training.data.ood import load_ood
from training.evaluation.own_images import GivenFolders
from training.metrics.detection import auroc, detection_error
from training.report.figures import histograms
from training.report.gather import gather

__all__ = ["model"]  # a fixture
BRANCH = "compact-cifar10"
QUICK = ("--no-preprocessed", "--device", "cpu")


@dataclass(frozen=True)
class Imported:
    """A bundle that `import-onnx` made, and the folders that it was given."""

    bundle: Path
    calibration: Path
    test: Path
    night: Path
    said: str


@pytest.fixture(scope="module")
def imported(model, tmp_path_factory):
    root = tmp_path_factory.mktemp("imported")
    calibration = write_photos(root / "photos" / "val", each=40)
    test = write_photos(root / "photos" / "test", each=20, seed=300)
    night = write_flat(root / "night", 24)
    bundle = root / "models" / "colours" / "1"
    told = confgate_train(
        *("import-onnx", model, "--labels", ",".join(LABELS), "--calibration", calibration, "--test", test),
        *("--mean", 0, "--std", 1, "--out", bundle),
    )
    return Imported(bundle, calibration, test, night, told.stdout)


def evaluated(out, *arguments):
    """What `evaluate` wrote into evaluation.json, and the columns of its only network by method."""
    done = confgate_train("evaluate", *arguments, "--out", out, *QUICK)
    content = json.loads((out / "evaluation.json").read_text())
    (group,) = content["groups"]
    (network,) = group["networks"]
    return content, group, network, {row["method"]: row for row in network["rows"]}, done.stdout


def energy_auroc(bundle, test, ood):
    """Straight from the bundle's graph."""
    manifest = load_bundle(bundle).manifest
    opened = OpenGraphs.of(load_bundle(bundle).graph_path("forward"), None, manifest.input)
    own = read_for_model(test, manifest.labels, manifest.input, "--test").images
    scores = [
        manifest.scores["energy"].of_images("energy", opened.run(images, None))
        for images in (own.images, load_ood(str(ood), Path("data"), manifest.input).test)
    ]
    return auroc(*scores)


def test_an_imported_bundle_finds_its_own_images(imported, tmp_path):
    """By the import's own --calibration and --test; figures are those of the graph, and of the bundle's card."""
    assert f"next: confgate-train report {imported.bundle} --ood uniform --out report" in imported.said
    _, group, network, rows, _ = evaluated(tmp_path, imported.bundle, "--ood", imported.night)
    assert (group["inside"], group["network"], group["n_calibration"], group["n_test"]) == (
        "photos",
        "colours",
        120,
        60,
    )
    figures = load_bundle(imported.bundle).manifest.evaluation
    accuracy = next(figure.value for figure in figures if figure.metric == "accuracy")
    assert network["classification_error"] == pytest.approx(1 - accuracy)
    expected = energy_auroc(imported.bundle, imported.test, imported.night)
    assert rows["baseline_energy"]["metrics"]["auroc"] == pytest.approx(expected)
    assert {"baseline", "baseline_pair", "baseline_certainty"} <= set(rows)
    assert "augrc_20_ood" in rows["baseline"]["metrics"]


def test_no_calibration_image_is_its_own_neighbour(imported, tmp_path):
    """An import's bank holds calibration images: the threshold comes from their similarity to the others alone."""
    alike = write_photos(tmp_path / "alike", ("all",), each=60, seed=700)
    rows = evaluated(tmp_path / "out", imported.bundle, "--ood", alike)[3]
    manifest = load_bundle(imported.bundle).manifest
    forward = onnx.load(imported.bundle / "model.onnx")
    bank = next(numpy_helper.to_array(one) for one in forward.graph.initializer if one.name == "neighbour_bank")
    bank = bank.astype(float) / np.linalg.norm(bank.astype(float), axis=0)

    def similarity(images):  # the model's features are the mean colour
        features = images[:].mean(axis=(1, 2))
        found = features / np.linalg.norm(features, axis=1, keepdims=True) @ bank
        return np.where(found > 1 - 1e-10, -1, found).max(axis=1)

    own = read_for_model(imported.calibration, manifest.labels, manifest.input, "--calibration").images.images
    others = load_ood(str(alike), Path("data"), manifest.input).calibration
    answers = OpenGraphs.of(imported.bundle / "model.onnx", None, manifest.input).run(own, None)
    uncorrected = detection_error(answers["neighbour_similarity"].astype(float), similarity(others)).value
    expected = detection_error(similarity(own), similarity(others)).value
    assert uncorrected != pytest.approx(expected, abs=1e-5)
    assert rows["baseline_neighbours"]["thresholds"]["on_ood"] == pytest.approx(expected, abs=1e-5)


def test_an_imported_bundle_has_a_report(imported, tmp_path):
    """The same figures as `evaluate`, with a sentence that says where the model is from."""
    confgate_train("report", imported.bundle, "--ood", imported.night, "--out", tmp_path, *QUICK)
    page = (tmp_path / "index.html").read_text()
    assert "An ONNX classifier, imported from" in page
    assert "trained on photos" not in page
    assert f"<td>{energy_auroc(imported.bundle, imported.test, imported.night):.1%}<" in page.replace(" class=top", "")
    assert (tmp_path / "risk-coverage.png").is_file()


def test_figures_are_titled_after_the_test_folder(imported, model, tmp_path):
    """Those of `import-onnx`, `evaluate` and `report` name what --test was given, not the calibration folder."""
    autumn, bundle = write_photos(tmp_path / "autumn", each=20, seed=300), tmp_path / "models" / "m" / "1"
    confgate_train(
        *("import-onnx", model, "--labels", ",".join(LABELS), "--calibration", imported.calibration, "--test", autumn),
        *("--mean", 0, "--std", 1, "--out", bundle),
    )
    figures = {figure.metric: figure.data for figure in load_bundle(bundle).manifest.evaluation}
    assert figures["accuracy"] == "autumn test"
    given = (imported.bundle, "--ood", imported.night, "--test", autumn)
    assert evaluated(tmp_path / "evaluation", *given)[1]["inside"] == "autumn"
    assert "autumn" in (tmp_path / "evaluation" / "evaluation.md").read_text()
    confgate_train("report", *given, "--out", tmp_path / "report", *QUICK)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "every figure is measured on test images (autumn)" in page
    assert "Test images of autumn with the lowest familiarity" in page
    drawn = gather(
        *(imported.bundle, [str(imported.night)], tmp_path, tmp_path / "report"),
        **{"given": GivenFolders(test=autumn), "device": "cpu", "preprocessed": False},
    )
    (axes, *_) = histograms(drawn).axes
    assert "autumn (known)" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_folders_that_moved_are_given(imported, tmp_path):
    """An error names the flag of the folder that is gone; with the flags the figures are the same."""
    moved = tmp_path / "moved"
    before = evaluated(tmp_path / "before", imported.bundle, "--ood", imported.night)[3]
    shutil.move(imported.calibration.parent, moved)
    try:
        told = confgate_train("evaluate", imported.bundle, "--ood", imported.night, check=False).stderr
        assert "which is no folder here, nor a set under data. Give --calibration DIR" in told
        where = ("--calibration", moved / "val")
        told = confgate_train("report", imported.bundle, "--ood", "uniform", "--out", tmp_path, *where, check=False)
        assert told.returncode == 2
        assert "which is no folder here. Give --test DIR" in told.stderr
        where = (*where, "--test", moved / "test")
        after = evaluated(tmp_path / "after", imported.bundle, "--ood", imported.night, *where)[3]
    finally:
        shutil.move(moved, imported.calibration.parent)
    assert {m: row["metrics"] for m, row in after.items()} == {m: row["metrics"] for m, row in before.items()}


def test_images_it_was_calibrated_on_are_no_test_images(imported, tmp_path):
    """A copy under another name is refused for tests, and a test image as an OOD image."""
    test = shutil.copytree(imported.test, tmp_path / "test")
    shutil.copy(imported.calibration / "red" / "3.png", test / "red" / "copy.png")
    command = ("evaluate", imported.bundle, "--test", test, "--out", tmp_path / "out")
    told = confgate_train(*command, "--ood", imported.night, check=False).stderr
    assert "--test " in told
    assert "1 of 61 images are calibration images: " in told
    night = shutil.copytree(imported.night, tmp_path / "night")
    shutil.copy(imported.test / "blue" / "5.png", night / "seen.png")
    told = confgate_train("evaluate", imported.bundle, "--ood", night, "--out", tmp_path / "out", check=False).stderr
    assert "images are test images: " in told


def test_a_folder_that_has_changed_is_not_what_it_was_calibrated_on(imported, tmp_path):
    """On record it is an error; given by hand it is used, with a note."""
    added = imported.calibration / "red" / "new.png"
    shutil.copy(write_flat(tmp_path / "flat", 1, seed=9) / "0.png", added)
    try:
        told = confgate_train("evaluate", imported.bundle, "--ood", imported.night, check=False).stderr
        assert "was calibrated on 120 images, and " in told
        assert "holds 121. Give --calibration DIR" in told
        given = ("--ood", imported.night, "--calibration", imported.calibration)
        content = evaluated(tmp_path / "out", imported.bundle, *given)[0]
    finally:
        added.unlink()
    assert any("thresholds were set on other images than these" in note for note in content["notes"])


@pytest.mark.parametrize("change", ["another image", "another label"])
def test_as_many_other_images_are_not_what_it_was_calibrated_on(imported, tmp_path, change):
    """A picture, or the label of one, was changed since: the number of images does not tell, their fingerprint does."""
    old, new = imported.calibration / "red" / "0.png", imported.calibration / "green" / "moved.png"
    aside = shutil.copy(old, tmp_path / "kept.png")
    if change == "another image":
        shutil.copy(write_flat(tmp_path / "flat", 1, seed=9) / "0.png", old)
    else:
        old.rename(new)
    try:
        told = confgate_train("evaluate", imported.bundle, "--ood", imported.night, check=False).stderr
        assert "holds other images, or labels, than those that " in told
        given = ("--ood", imported.night, "--calibration", imported.calibration)
        content = evaluated(tmp_path / "out", imported.bundle, *given)[0]
    finally:
        new.unlink(missing_ok=True)
        shutil.copy(aside, old)
    assert any(note.endswith("was calibrated on: thresholds were set on others") for note in content["notes"])


def test_the_order_and_names_of_images_do_not_matter(imported, tmp_path):
    """The same images under other names are those that it was calibrated on."""
    renamed = [path.rename(path.with_name(f"z{path.name}")) for path in sorted(imported.calibration.rglob("1*.png"))]
    try:
        evaluated(tmp_path / "out", imported.bundle, "--ood", imported.night)
    finally:
        for path in renamed:
            path.rename(path.with_name(path.name[1:]))
    assert renamed


def test_unlabelled_test_images_give_ood_figures_alone(imported, tmp_path):
    """AUROC needs no labels and is the same as with them; accuracy and AUGRC are left out, which a note says."""
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in imported.test.rglob("*.png"):
        shutil.copy(path, flat / f"{path.parent.name}-{path.name}")
    given = (imported.bundle, "--ood", imported.night, "--test", flat)
    _, _, network, rows, said = evaluated(tmp_path / "out", *given)
    assert network["classification_error"] is None
    expected = energy_auroc(imported.bundle, imported.test, imported.night)
    assert rows["baseline_energy"]["metrics"]["auroc"] == pytest.approx(expected)
    assert all("augrc_20_ood" not in row["metrics"] for row in rows.values())
    assert "the test images have no labels, so accuracy and AUGRC are not measured" in said
    assert "AUGRC × 1000" not in (tmp_path / "out" / "evaluation.md").read_text()
    both = confgate_train("evaluate", "--from", tmp_path / "out", "--out", tmp_path / "again")
    assert "no labels" in both.stdout
    confgate_train("report", *given, "--out", tmp_path / "report", *QUICK)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "The test images have no labels." in page
    assert "AUROC, own mistakes" not in page
    assert {path.stem for path in (tmp_path / "report").glob("*.png")} == {
        *("map", "histograms", "detection-error", "roc", "least-samples", "other-samples"),
    }


def test_an_import_without_test_images_says_what_to_give(imported, model, tmp_path):
    """The next command that is printed has --test, and so has the error."""
    bundle = tmp_path / "models" / "m" / "1"
    told = confgate_train(
        *("import-onnx", model, "--labels", ",".join(LABELS), "--calibration", imported.calibration, "--out", bundle),
    )
    assert f"next: confgate-train report {bundle} --test FOLDER --ood uniform" in told.stdout
    told = confgate_train("report", bundle, "--ood", imported.night, "--out", tmp_path / "r", check=False).stderr
    assert "was imported without --test, so it has no test images. Give --test DIR" in told
    told = confgate_train("evaluate", bundle, "--ood", "uniform", "--run", tmp_path, check=False).stderr
    assert "was imported and not trained here, so --run does not help" in told


def test_a_bundle_calibrated_on_a_folder_is_measured_with_it(imported, tmp_path):
    """After `calibrate --data FOLDER` its images are the calibration images; traffic alone changes nothing."""
    photos = write_photos(tmp_path / "photos", each=25, seed=900)
    second, third = (imported.bundle.parent / str(version) for version in (2, 3))
    confgate_train("calibrate", imported.bundle, "--data", photos, "--out", second)
    traffic = ("--traffic", imported.night, "--target-rejection", 0.2)
    confgate_train("calibrate", second, *traffic, "--out", third)
    for bundle in (second, third):
        _, group, *_ = evaluated(tmp_path / bundle.name, bundle, "--ood", imported.night)
        assert (group["n_calibration"], group["n_test"]) == (75, 60)
    told = confgate_train("evaluate", second, "--ood", imported.night, "--test", photos, check=False).stderr
    assert "75 of 75 images are calibration images" in told


def test_a_trained_bundle_is_measured_on_folders_alone(reproduced, imported, tmp_path):
    """Where the set it was trained on is not at hand, --calibration and --test take its place."""
    labels = load_bundle(reproduced.bundle(BRANCH)).manifest.labels
    own = ("--calibration", write_wide(tmp_path / "val", labels, 0), "--test", write_wide(tmp_path / "test", labels, 1))
    command = (reproduced.bundle(BRANCH), "--ood", imported.night, "--data-root", tmp_path)
    told = confgate_train("evaluate", *command, "--out", tmp_path / "out", check=False).stderr
    assert "--calibration DIR and --test DIR" in told
    _, group, _, rows, _ = evaluated(tmp_path / "out", *command, *own)
    assert (group["inside"], group["n_calibration"], group["n_test"]) == (tmp_path.name, 60, 60)
    assert "confidence" in rows


def write_wide(folder, labels, seed):
    """Twenty images for each class."""
    random = np.random.default_rng(seed)
    for label in labels:
        (folder / label).mkdir(parents=True)
        for number in range(20):
            pixels = random.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")
    return folder


def test_a_run_is_exported_and_measured(reproduced, imported, tmp_path):
    """`evaluate RUN` has the figures of the bundle that `export` makes of it; the second time nothing is exported."""
    where = ("--data-root", reproduced.data, "--limit", LIMIT, "--ood", imported.night)
    done = evaluated(tmp_path, reproduced.run(BRANCH), *where)
    (exported,) = (tmp_path / "exported").iterdir()
    assert f"exported {reproduced.run(BRANCH)} to {exported / '1'}" in done[4]
    beside = evaluated(tmp_path / "beside", reproduced.bundle(BRANCH), "--run", reproduced.run(BRANCH), *where)
    ours, theirs = (one[3]["confidence"]["metrics"]["auroc"] for one in (done, beside))
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert done[2]["budget"] == beside[2]["budget"] is not None
    again = evaluated(tmp_path, reproduced.run(BRANCH), *where)
    assert f"exported {reproduced.run(BRANCH)}" not in again[4]
    assert again[3] == done[3]
