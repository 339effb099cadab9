"""The recipe `photos` from the command line: a folder becomes a run and a bundle; what is wrong with it is named."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from service.model.bundle import load_bundle
from tests.training.command_line import in_this_process as confgate_train
from tests.training.command_line import write_folder
from training.data.decoded import keeping_decoded
from training.learning.accuracy import accuracy, accuracy_and_loss
from training.learning.finished_run import read_run
from training.networks import efficientnet_lite
from training.networks.state_files import read_state_file

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ("--size", 32, "--device", "cpu", "--workers", 0)


def flat(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A head on 102 photos: the folder, the run, and what was said."""
    root = tmp_path_factory.mktemp("photos")
    photos = write_folder(root / "photos", each=34)
    told = confgate_train("fit", "photos", "--data", photos, "--out", root / "run", *SMALL).stdout
    return photos, root / "run", flat(told)


def test_a_hundred_photos_are_divided_and_their_number_is_told(fitted):
    """A tenth selects, a quarter sets thresholds, 15 % measure; the recipe in run.json has numbers and no `auto`."""
    _, run, told = fitted
    assert "photos on photos: 51 train, 10 validation, 26 calibration, 15 test; the head alone" in told
    recipe = json.loads((run / "run.json").read_text())["recipe"]
    assert recipe["optimiser"]["trains"] == "head"
    assert (recipe["optimiser"]["epochs"], recipe["optimiser"]["batch_size"]) == (60, 8)
    assert recipe["data"]["calibration"] == 26


def test_the_head_is_fitted_and_the_body_kept(fitted):
    """Every tensor of the body is the package's, and torch's accuracy with the new head is the one of result.json."""
    _, run, told = fitted
    trained = read_run(run, run)
    package = list(read_state_file(efficientnet_lite.packaged_file(), "test").values())
    body = trained.network.body.state_dict()
    assert all(torch.equal(one, other) for one, other in zip(body.values(), package, strict=False))
    result = json.loads((run / "result.json").read_text())
    mean, std = torch.tensor(trained.mean), torch.tensor(trained.std)
    assert accuracy(trained.network, trained.splits.validation, mean, std) == result["validation_accuracy"] > 0.5
    assert f"validation accuracy {result['validation_accuracy']:.2%} (n=10)" in told


def test_a_stopped_head_goes_on_with_its_features(fitted):
    """Without its checkpoint the run reads the features it has kept and ends with the same head; then it is done."""
    photos, run, _ = fitted
    same = ("fit", "photos", "--data", photos, "--out", run, *SMALL)
    before = torch.load(run / "checkpoint.pt", weights_only=True)["network"]
    (run / "checkpoint.pt").unlink()
    kept = (run / "features-train.npy").stat().st_mtime_ns
    confgate_train(*same)
    assert (run / "features-train.npy").stat().st_mtime_ns == kept
    after = torch.load(run / "checkpoint.pt", weights_only=True)["network"]
    assert torch.equal(before["head.weight"], after["head.weight"])
    assert "L2" not in confgate_train(*same).stdout
    refused = confgate_train(*same, "--train", "all", check=False)
    assert "optimiser.trains is 'network', it was 'head'" in flat(refused.stderr)


def test_a_run_on_photos_is_exported_where_they_moved_to(fitted, tmp_path):
    """The bundle has neighbours and the gate of two questions, and no branch; `fit` knows the photos there too."""
    photos, run, _ = fitted
    moved = tmp_path / "elsewhere"
    shutil.move(photos, moved)
    try:
        out = tmp_path / "models" / "mine" / "1"
        refused = confgate_train("export", run, "--out", out, check=False)
        assert f"the images are no longer at {photos}" in flat(refused.stderr)
        told = confgate_train("export", run, "--out", out, "--data", moved).stdout
        assert "done in" in confgate_train("fit", "photos", "--data", moved, "--out", run, *SMALL).stdout
    finally:
        shutil.move(moved, photos)
    manifest = load_bundle(out).manifest
    assert "neighbours" in manifest.scores
    assert "familiarity (typicality) is combined from energy, neighbours" in told or "too few mistakes" in told
    assert manifest.pairs
    assert not any(name.startswith("confidence") for name in manifest.scores)
    assert manifest.labels == ("blue", "green", "red")


def test_all_of_the_network_learns_from_the_fitted_head(fitted, tmp_path):
    """Two steps from the head of a run; its parts are told, and the best blend with the start is what is served."""
    photos, run, _ = fitted
    changes = ("--set", "optimiser.epochs=1", "--set", "optimiser.batch_size=25", "--set", "augment.early_share=none")
    init = ("--init", run / "checkpoint.pt")
    whole = ("fit", "photos", "--data", photos, "--train", "all", "--out", tmp_path / "run", *SMALL, *init, *changes)
    told = flat(confgate_train(*whole).stdout)
    assert "51 train, 10 validation, 26 calibration, 15 test; 1 epochs of 2 steps, batches of 25; cpu" in told
    before, after = (torch.load(one / "checkpoint.pt", weights_only=True)["network"] for one in (run, tmp_path / "run"))
    for name in ("body.conv_stem.weight", "body.conv_head.weight", "head.weight"):
        assert not torch.equal(before[name], after[name])
    assert json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]["augment"]["early_share"] == 0
    tried = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    best = min((line for line in tried if line["kind"] == "blend"), key=lambda line: line["validation_loss"])
    assert f"{best['share']:.0%} of the last has the smallest validation loss" in told
    served = read_run(tmp_path / "run", tmp_path)
    found = accuracy_and_loss(
        served.network, served.splits.validation, torch.tensor(served.mean), torch.tensor(served.std)
    )
    assert found == pytest.approx((best["validation_accuracy"], best["validation_loss"]), abs=1e-6)
    again = flat(confgate_train(*whole).stdout)
    assert f"validation accuracy {best['validation_accuracy']:.2%} (n=10)" in again


def test_splits_of_a_folder_are_splits(tmp_path):
    """train/, valid/ and test/ keep their images; only calibration images are taken, from train/."""
    for part, each in (("train", 30), ("valid", 4), ("test", 5)):
        random = np.random.default_rng(each)
        for name in ("cat", "dog"):
            (tmp_path / "pets" / part / name).mkdir(parents=True)
            for number in range(each):
                photo = Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8))
                photo.save(tmp_path / "pets" / part / name / f"{number}.png")
    refused = confgate_train(
        *("fit", "photos", "--data", tmp_path / "pets", "--out", tmp_path / "run", *SMALL),
        *("--train", "all", "--set", "optimiser.batch_size=50"),
        check=False,
    )
    # 60 less a quarter of them
    assert "optimiser.batch_size is 50, but there are only 45 training images" in flat(refused.stderr)


def test_what_is_wrong_with_photos_is_named(tmp_path):
    """No folder, a corrupt file, a class with one photo: each is refused by name before anything is trained."""
    fit = ("fit", "photos", "--out", tmp_path / "run", *SMALL)
    assert "recipe 'photos' is for photos of your own. Give --data DIR" in flat(
        confgate_train(*fit, check=False).stderr
    )
    photos = write_folder(tmp_path / "photos", each=10)
    (photos / "scarf").mkdir()
    shutil.copy(photos / "red" / "0.png", photos / "scarf" / "0.png")
    (photos / "red" / "0.png").unlink()
    said = flat(confgate_train(*fit, "--data", photos, check=False).stderr)
    assert "1 of 4 classes have one image to train on" in said
    assert "'scarf' has only" in said
    (photos / "scarf" / "1.png").write_bytes((photos / "scarf" / "0.png").read_bytes()[:80])
    said = flat(confgate_train(*fit, "--data", photos, check=False).stderr)
    assert "1 of 31 files cannot be used" in said
    assert "scarf/1.png" in said
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


def test_a_head_needs_weights_of_its_body(tmp_path):
    """Features of a random body would be of no use: that is said, with what to do."""
    photos = write_folder(tmp_path / "photos", each=12)
    refused = confgate_train(
        *("fit", "photos", "--data", photos, "--out", tmp_path / "run", *SMALL),
        *("--set", "network.weights=none", "--set", "data.normalisation=imagenet"),
        check=False,
    )
    assert "nothing says where they come from: set network.weights" in flat(refused.stderr)


def test_a_photo_is_the_same_kept_or_decoded_again(fitted):
    """Crops are taken of the same pixels, whether there was room to keep the photo or not."""
    _, run, _ = fitted
    decoded = read_run(run, run).splits.train.images
    with keeping_decoded(wholes=True):
        kept = read_run(run, run).splits.train.images
        for number in (0, 7, 50):
            assert kept.whole(number).shape != decoded[number].shape
            assert np.array_equal(kept.whole(number), decoded.whole(number))
