"""Named sets and their four splits."""

import hashlib

import numpy as np
import pytest

from tests.training.command_line import coloured, write_set
from training.data.splits import splits_for
from training.errors import DataError, RecipeError
from training.recipe import Data

PARTS = ("train", "validation", "calibration", "test")


def load_splits(name, root, validation, calibration, seed, limit=None):
    data = Data(dataset=name, validation=validation, calibration=calibration, split_seed=seed, limit=limit)
    return splits_for(data, root)


def pictures(part):
    return {image.tobytes() for image in part.images}


def rewrite(root, **changes):
    with np.load(root / "colours.npz") as file:
        arrays = {key: file[key] for key in file.files} | changes
    np.savez(root / "colours.npz", **{key: value for key, value in arrays.items() if value is not None})


def test_the_four_splits_are_disjoint_and_complete(tmp_path):
    """Every image of the set is in exactly one split, and the published test part stays as it was."""
    root = write_set(tmp_path)
    splits = load_splits("colours", root, validation=20, calibration=30, seed=0)
    assert splits.sizes == {"train": 100, "validation": 20, "calibration": 30, "test": 30}
    assert sum(len(pictures(getattr(splits, part))) for part in PARTS) == 180
    assert len(set.union(*(pictures(getattr(splits, part)) for part in PARTS))) == 180
    assert np.array_equal(splits.test.images, np.load(root / "colours.npz")["x_test"])
    for part in PARTS:  # labels went along with their images: the class is the brightest channel
        images = getattr(splits, part).images
        assert np.array_equal(images.mean(axis=(1, 2)).argmax(axis=1), getattr(splits, part).labels)


def test_the_split_is_a_shuffle_by_its_seed(tmp_path):
    """The order is numpy's permutation for the seed, so that runs of different versions share their splits."""
    root = write_set(tmp_path)
    published = np.load(root / "colours.npz")["x_train"]
    order = np.random.default_rng(7).permutation(150)
    splits = load_splits("colours", root, validation=20, calibration=30, seed=7)
    assert np.array_equal(splits.validation.images, published[order[:20]])
    assert np.array_equal(splits.calibration.images, published[order[20:50]])
    assert np.array_equal(splits.train.images, published[order[50:]])


def test_the_fingerprint_tells_data_and_division_apart(tmp_path):
    """Equal data and division give equal fingerprints; another seed, size, limit, pixel, label or test part another."""
    root = write_set(tmp_path)
    first = load_splits("colours", root, 20, 30, seed=0).fingerprint
    assert load_splits("colours", root, 20, 30, seed=0).fingerprint == first
    others = [
        load_splits("colours", root, 20, 30, seed=1).fingerprint,
        load_splits("colours", root, 21, 30, seed=0).fingerprint,
        load_splits("colours", root, 20, 30, seed=0, limit=50).fingerprint,
    ]
    images = np.load(root / "colours.npz")["x_train"]
    images[0, 0, 0, 0] ^= 1
    rewrite(root, x_train=images)
    others.append(load_splits("colours", root, 20, 30, seed=0).fingerprint)
    rewrite(root, y_train=(np.arange(150) + 1) % 3)
    others.append(load_splits("colours", root, 20, 30, seed=0).fingerprint)
    rewrite(root, x_test=np.load(root / "colours.npz")["x_test"] ^ 1)
    others.append(load_splits("colours", root, 20, 30, seed=0).fingerprint)
    assert len({first, *others}) == 7


def test_a_fingerprint_of_an_earlier_version_is_recognised(tmp_path):
    """It was of the training images alone: a run that recorded it is given its splits, and no other run is."""
    root = write_set(tmp_path)
    images = np.load(root / "colours.npz")["x_train"]
    order = np.random.default_rng(0).permutation(150)
    digest = hashlib.sha256(images.tobytes() + order.tobytes() + repr((20, 30, None)).encode())
    earlier = digest.hexdigest()[:16]
    data = Data(dataset="colours", validation=20, calibration=30)
    assert splits_for(data, root, recorded=earlier).fingerprint == earlier
    assert splits_for(data, root).fingerprint != earlier
    assert splits_for(data, root, recorded="0123456789abcdef").fingerprint == splits_for(data, root).fingerprint


def test_a_set_without_a_test_part_is_cut_whole_and_keeps_its_proportions(tmp_path):
    """Fractions of a small unbalanced set give each split its share of each class."""
    labels = np.repeat([0, 1, 2], [100, 60, 40])
    np.savez(tmp_path / "own.npz", x=coloured(labels, 8, 1), y=labels, label_names=np.asarray(["a", "b", "c"]))
    data = Data(dataset="own", validation=0.1, calibration=0.2, test=0.2)
    splits = splits_for(data, tmp_path)
    assert splits.sizes == {"train": 100, "validation": 20, "calibration": 40, "test": 40}
    assert splits.label_names == ("a", "b", "c")
    assert len(set.union(*(pictures(getattr(splits, part)) for part in PARTS))) == 200
    for part in PARTS:
        counts = np.bincount(getattr(splits, part).labels, minlength=3)
        assert np.abs(counts - np.asarray([0.5, 0.3, 0.2]) * len(getattr(splits, part))).max() <= 1


def test_images_are_brought_to_the_wanted_size_by_the_code_that_serves(tmp_path):
    """`size` resizes an array exactly as the service resizes an image, and says how in `input`."""
    from service.model.images import fit_array

    root = write_set(tmp_path)
    data = Data(dataset="colours", validation=20, calibration=30, size=16)
    splits = splits_for(data, root)
    assert (splits.input.width, splits.input.height, splits.input.resize) == (16, 16, "stretch")
    original = np.load(root / "colours.npz")["x_test"][5]
    assert np.array_equal(splits.test.images[5], fit_array(original, splits.input))
    assert splits.train.images.shape == (100, 16, 16, 3)


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"y_train": np.full(150, 2) * (np.arange(150) % 2)}, {}, "no training image of class 1"),
        ({"y_test": np.r_[np.zeros(29), 3]}, {}, "test label 3 at index 29 is outside 0…2"),
        ({"y_train": np.r_[-1, np.arange(149) % 3]}, {}, "train label -1 at index 0"),
        ({"y_train": np.zeros(149)}, {}, "150 train images but 149 labels"),
        ({"x_train": np.zeros((150, 12, 12), np.uint8)}, {}, "'x_train' is uint8 [150, 12, 12], expected"),
        (
            {"x_train": np.zeros((150, 9, 12, 3), np.uint8), "x_test": np.zeros((30, 9, 12, 3), np.uint8)},
            {},
            "12×9 pixels",
        ),
        ({"y_test": None}, {}, "no labelled train and test parts"),
        ({}, {"validation": 100, "calibration": 50}, "150 images to divide, too few for 100 validation, 50 calib"),
    ],
)
def test_what_is_wrong_with_a_set_is_said(tmp_path, changes, arguments, message):
    """Malformed arrays, wrong labels, empty classes and splits that do not fit are refused before training."""
    root = write_set(tmp_path)
    rewrite(root, **changes)
    with pytest.raises(DataError) as problem:
        load_splits("colours", root, **({"validation": 20, "calibration": 30, "seed": 0} | arguments))
    assert message in str(problem.value)


def test_a_missing_or_damaged_file_says_what_to_do(tmp_path):
    """A known set that is absent comes with the command that gets it; a damaged one with its path."""
    with pytest.raises(DataError, match="confgate-train data download svhn"):
        load_splits("svhn", tmp_path, 1, 1, seed=0)
    (tmp_path / "svhn.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(DataError, match=r"svhn\.npz is not a readable"):
        load_splits("svhn", tmp_path, 1, 1, seed=0)


def test_a_second_test_part_is_refused(tmp_path):
    """`data.test` makes no sense for a set that has its own test images."""
    with pytest.raises(RecipeError, match="has a test part of its own"):
        splits_for(Data(dataset="colours", validation=20, calibration=30, test=0.1), write_set(tmp_path))
