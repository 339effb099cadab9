"""From a folder of photos to a bundle that knows them: `--data` through fit, export, calibrate and evaluate."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from service.model.bundle import load_bundle
from tests.training.command_line import confgate_train as in_a_process
from tests.training.command_line import in_this_process as confgate_train
from tests.training.command_line import write_folder
from tests.training.paper_data import TINY
from training.data.seen import hashes_in, hashes_of
from training.learning.finished_run import read_run

RECIPE = """
extends = "compact-cifar10"
[data]
resize = "fit_crop"
crop_fraction = 0.9
interpolation = "bilinear"
decode_margin = "full"
normalisation = "imagenet"
calibration = 0.3
"""
SHARES = ("--set", "data.validation=0.1", "--set", "data.calibration=0.3")


@dataclass(frozen=True)
class Trained:
    """A run on a folder of photos, the folder under its new name, OOD photos, and the bundle."""

    run: Path
    photos: Path
    night: Path
    bundle: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("moved")
    photos = write_folder(root / "photos", each=60)
    (root / "recipe.toml").write_text(RECIPE)
    tiny = [option for option in TINY if not option.startswith("data.") and option != "--set"]
    changes = [word for option in tiny for word in ("--set", option)]
    run = root / "run"
    in_a_process("fit", root / "recipe.toml", "--data", photos, "--size", 12, "--workers", 0, *changes, "--out", run)
    night = root / "night"
    night.mkdir()
    random = np.random.default_rng(7)
    for number in range(24):
        Image.fromarray(random.integers(0, 50, (20, 30, 3), dtype=np.uint8)).save(night / f"{number}.png")
    moved = root / "elsewhere" / "renamed"
    moved.parent.mkdir()
    shutil.move(photos, moved)
    bundle = root / "models" / "photos" / "1"
    told = confgate_train("export", run, "--out", bundle, check=False)
    assert told.returncode == 2
    assert "the images are no longer at" in told.stderr
    assert "give --data NEW_FOLDER" in told.stderr
    confgate_train("export", run, "--out", bundle, "--data", moved, "--ood", night)
    return Trained(run, moved, night, bundle)


def test_data_changes_the_data_of_a_recipe_and_nothing_else(trained):
    """Crop, interpolation, normalisation and shares of the recipe stay; a number of images becomes a share."""
    data = json.loads((trained.run / "run.json").read_text())["recipe"]["data"]
    assert (data["resize"], data["crop_fraction"], data["interpolation"]) == ("fit_crop", 0.9, "bilinear")
    assert data["normalisation"] == "imagenet"
    assert (data["validation"], data["calibration"], data["test"]) == (0.1, 0.3, 0.15)
    served = load_bundle(trained.bundle).manifest.input
    assert (served.crop_fraction, served.decode_margin) == (0.9, "full")


def test_a_bundle_keeps_hashes_of_its_training_images_and_nothing_more(trained):
    """Eight bytes an image, in a hashed file of the bundle; half of the OOD folder is measured."""
    bundle = load_bundle(trained.bundle)
    train = read_run(trained.run, Path("data"), trained.photos).splits.train
    kept = hashes_in(bundle)
    assert np.array_equal(kept, np.unique(hashes_of(train.images, bundle.manifest.input)))
    assert bundle.manifest.training_images.size == 8 * len(kept)
    measured = {f.n for f in bundle.manifest.evaluation if (f.data, f.metric) == ("night", "rejection_rate")}
    assert measured == {12}


def test_training_images_are_refused_for_calibration(trained, tmp_path):
    """Under another name, or saved again without loss, as images to calibrate on, as OOD images or as traffic."""
    manifest = load_bundle(trained.bundle).manifest
    splits = read_run(trained.run, Path("data"), trained.photos).splits
    own = tmp_path / "own"
    held_out = (*splits.calibration.images.paths, *splits.test.images.paths)
    for path in held_out:
        (own / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, own / path.parent.name / f"copy-{path.name}")
    command = ("calibrate", trained.bundle, "--data", own)
    confgate_train(*command)
    seen = next(path for path in splits.train.images.paths if path.suffix == ".png")
    Image.open(seen).save(own / manifest.labels[0] / "again.webp", lossless=True)
    told = confgate_train(*command, check=False).stderr
    assert f"1 of {len(held_out) + 1} images are images that the model was trained on: " in told
    assert "again.webp" in told
    traffic = ("--traffic", trained.photos, "--target-rejection", 0.1)
    told = confgate_train("calibrate", trained.bundle, *traffic, check=False).stderr
    assert f"{len(splits.train)} of 180 images are images that the model was trained on" in told
    shutil.copy(seen, trained.night / "seen.png")
    try:
        told = confgate_train(
            "export",
            trained.run,
            "--out",
            tmp_path / "models" / "p" / "1",
            "--data",
            trained.photos,
            "--ood",
            trained.night,
            check=False,
        ).stderr
    finally:
        (trained.night / "seen.png").unlink()
    assert "--ood night: 1 of " in told
    assert "are images that the model was trained on: " in told


def test_an_evaluation_tests_the_half_that_calibration_did_not_see(trained, tmp_path):
    """Of the same folder, evaluate measures the same half as export did; the moved photos are found by --data."""
    out = tmp_path / "evaluation"
    where = ("--run", trained.run, "--data", trained.photos)
    confgate_train("evaluate", trained.bundle, "--ood", trained.night, *where, "--no-preprocessed", "--out", out)
    content = json.loads((out / "evaluation.json").read_text())
    assert [(one["name"], one["n_calibration"], one["n_test"]) for one in content["outside"]] == [("night", 12, 12)]
    rows = content["groups"][0]["networks"][0]["rows"]
    row = next(row for row in rows if row["method"] == "branch_energy")
    figures = load_bundle(trained.bundle).manifest.evaluation
    exported = next(f for f in figures if (f.metric, f.data, f.score) == ("auroc", "night", "energy"))
    assert row["metrics"]["auroc"] == pytest.approx(exported.value)


def test_a_changed_folder_is_not_the_same_data(trained, tmp_path):
    """--data names any folder, and the fingerprint tells: a photo that moved to another class is refused."""
    other = shutil.copytree(trained.photos, tmp_path / "other")
    (other / "red" / "0.png").rename(other / "red" / "another name.png")
    read_run(trained.run, Path("data"), other)  # a renamed photo is the same photo
    (other / "red" / "2.png").rename(other / "blue" / "2 red.png")
    told = confgate_train("calibrate", trained.run, "--data", other, check=False)
    assert told.returncode == 2
    assert "the run was trained on" in told.stderr
