"""Your own images: a folder of class sub-folders."""

import hashlib
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from service.model.images import decode
from tests.training.command_line import write_folder
from training.data.assign import balanced_order
from training.data.splits import splits_for
from training.errors import DataError
from training.recipe import Data

SHARES = {"validation": 0.1, "calibration": 0.2, "test": 0.2}


def read(folder, recorded=None, **changes):
    fields = {"dataset": folder.name, "folder": str(folder), "size": 16, "resize": "fit_crop"} | SHARES | changes
    return splits_for(
        Data(**{key: value for key, value in fields.items() if value is not None}), folder, recorded=recorded
    )


def files_of(part):
    return set(part.images.paths)


def test_every_file_is_in_one_split_and_decoded_as_it_would_be_served(tmp_path):
    """Splits are disjoint and complete, labels are folder names, pixels come from the service's own decoder."""
    folder = write_folder(tmp_path / "photos")
    splits = read(folder)
    assert splits.sizes == {"train": 30, "validation": 6, "calibration": 12, "test": 12}
    assert splits.label_names == ("blue", "green", "red")
    parts = (splits.train, splits.validation, splits.calibration, splits.test)
    assert set.union(*map(files_of, parts)) == set(folder.rglob("*.*"))
    for part in parts:
        assert [splits.label_names[k] for k in part.labels] == [path.parent.name for path in part.images.paths]
    batch = splits.test.images[2:5]
    served = [decode(path.read_bytes(), splits.input, 10**6) for path in splits.test.images.paths[2:5]]
    assert batch.dtype == np.uint8
    assert np.array_equal(batch, served)
    assert np.array_equal(splits.test.images[2], served[0])
    assert np.array_equal(splits.test.images[np.asarray([4, 2])], [served[2], served[0]])
    assert splits.test.images.shape == (12, 16, 16, 3)


def test_channel_statistics_are_those_of_all_training_pixels(tmp_path):
    """The first pass over the files gives the mean and deviation that reading everything again would give."""
    from training.data.normalise import channel_statistics

    train = read(write_folder(tmp_path / "photos")).train.images
    mean, std = channel_statistics(train)
    again_mean, again_std = channel_statistics(train[:])
    assert np.allclose(mean, again_mean, atol=1e-6)
    assert np.allclose(std, again_std, atol=1e-6)
    assert np.allclose(mean, (train[:] / 255).mean(axis=(0, 1, 2)), atol=1e-6)


def test_the_fingerprint_follows_content_and_labels_not_names(tmp_path):
    """A moved folder and renamed files are the same data, divided alike; a changed file and another label are not."""
    folder = write_folder(tmp_path / "photos")
    first = read(folder)
    moved = shutil.move(folder, tmp_path / "elsewhere")
    for number, path in enumerate(sorted(moved.rglob("*.png"), reverse=True)):
        path.rename(path.with_name(f"{number} renamed.png"))
    again = read(moved, dataset="photos")
    assert again.fingerprint == first.fingerprint
    assert np.array_equal(again.calibration.images.hashes, first.calibration.images.hashes)
    relabelled = shutil.copytree(moved, tmp_path / "relabelled")
    path = next((relabelled / "red").glob("*.jpg"))
    path.rename(relabelled / "blue" / "one more.jpg")
    assert read(relabelled, dataset="photos").fingerprint != first.fingerprint
    shutil.copy(moved / "red" / "3.jpg", moved / "red" / "5.jpg")
    assert read(moved, dataset="photos").fingerprint != first.fingerprint


def test_a_folder_that_an_earlier_version_divided_is_divided_alike(tmp_path):
    """A fingerprint of the order of names is recognised, and the images are divided as they were then."""
    folder = write_folder(tmp_path / "photos")
    files = [path for name in ("blue", "green", "red") for path in sorted((folder / name).iterdir())]
    digest = hashlib.sha256()
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest() + path.parent.name.encode() + b"l")
    labels = np.repeat(np.arange(3), 20)
    order = balanced_order(labels, 0)
    recorded = hashlib.sha256(digest.digest() + order.tobytes() + repr((0.1, 0.2, None)).encode() + repr(0.2).encode())
    earlier = recorded.hexdigest()[:16]
    splits = read(folder, recorded=earlier)
    assert splits.fingerprint == earlier != read(folder).fingerprint
    assert splits.calibration.images.paths == tuple(files[i] for i in order[6:18])
    assert read(folder, recorded="0123456789abcdef").fingerprint == read(folder).fingerprint


def test_splits_of_their_own_are_parts_and_never_classes(tmp_path):
    """train/, Validation/ and test/ are the parts of the same classes; without train/ they are nothing to train on."""
    root = tmp_path / "photos"
    for part, each in (("train", 20), ("Validation", 3), ("test", 4)):
        write_folder(root / part, each)
    splits = read(root, test=None, validation=1)
    assert splits.label_names == ("blue", "green", "red")
    for part, place in (("test", "test"), ("validation", "Validation"), ("train", "train"), ("calibration", "train")):
        images = getattr(splits, part)
        assert {path.parent.parent.name for path in images.images.paths} == {place}
        assert [splits.label_names[k] for k in images.labels] == [path.parent.name for path in images.images.paths]
    assert splits.sizes["test"] == 12
    assert splits.sizes["validation"] + splits.sizes["train"] + splits.sizes["calibration"] > 60
    with pytest.raises(DataError, match="has the split folders"):
        read(shutil.move(root / "train", tmp_path / "train").parent / "photos", test=None)


def test_a_test_folder_of_its_own_is_the_test_split(tmp_path):
    """ROOT/train and ROOT/test keep to their parts, and a picture in both counts for the test only."""
    write_folder(tmp_path / "photos" / "train")
    test = tmp_path / "photos" / "test" / "red"
    test.mkdir(parents=True)
    shutil.copy(tmp_path / "photos" / "train" / "red" / "6.png", test / "new.png")
    splits = read(tmp_path / "photos", test=None)
    assert [path.name for path in splits.test.images.paths] == ["new.png"]
    assert splits.test.labels.tolist() == [2]
    assert splits.sizes["train"] + splits.sizes["validation"] + splits.sizes["calibration"] == 59
    assert splits.notes[0] == "1 files are exact copies of others and were left out"
    assert splits.notes[1].startswith(f"only {splits.sizes['calibration']} calibration images")


def truncate(folder):
    for name in ("0.png", "1.jpg"):
        path = folder / "red" / name
        path.write_bytes(path.read_bytes()[:-40])


def empty_class(folder):
    (folder / "yellow").mkdir()
    (folder / "yellow" / "notes.txt").write_text("to do")


def one_class(folder):
    shutil.rmtree(folder / "red")
    shutil.rmtree(folder / "blue")


def same_picture_twice(folder):
    shutil.copy(folder / "red" / "0.png", folder / "blue" / "copy.png")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (truncate, "2 of 60 files cannot be used: "),
        (empty_class, "class 'yellow' is empty"),
        (one_class, "has 1 sub-folders, expected one for each of at least two classes"),
        (same_picture_twice, "the same picture is in two classes: blue/copy.png ('blue') and red/0.png ('red')"),
        (shutil.rmtree, "is not a folder"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_before_training(tmp_path, spoil, message):
    """Corrupt files, empty classes and contradictions are found by the first pass, and all corrupt files named."""
    folder = write_folder(tmp_path / "photos")
    spoil(folder)
    with pytest.raises(DataError) as problem:
        read(folder)
    assert message in str(problem.value)
    if spoil is truncate:
        assert "0.png" in str(problem.value)
        assert "1.jpg" in str(problem.value)


def test_a_photo_on_its_side_is_turned_before_it_is_cropped(tmp_path):
    """EXIF says "turn right": what is stored on the left is the top of every augmented crop, in proportion."""
    from training.learning.augmentation.photo import augment_photo
    from training.recipe import Augmentation

    folder = write_folder(tmp_path / "photos", each=4)
    stored = np.zeros((20, 40, 3), np.uint8)
    stored[:, :20, 0] = stored[:, 20:, 2] = 255  # left red, right blue
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(stored).save(folder / "red" / "0.png", exif=exif)
    images = read(folder, validation=1, calibration=1, test=1).train.images
    index = next(i for i, path in enumerate(images.paths) if path == folder / "red" / "0.png")
    for seed in range(5):
        crop = augment_photo(images, index, Augmentation(smallest_area=0.9), flip=False, seed=seed).numpy()
        assert crop.shape == (16, 16, 3)
        assert (crop[0, :, 0] > 200).all()
        assert (crop[-1, :, 2] > 200).all()


def test_operations_on_a_photo_follow_from_its_seed(tmp_path):
    """RandAugment changes the same crop in the same way for a seed, in others for other seeds; without it, it stays."""
    from training.learning.augmentation.photo import augment_photo
    from training.recipe import Augmentation

    images = read(write_folder(tmp_path / "photos", each=4), validation=1, calibration=1, test=1).train.images
    plain, varied = Augmentation(smallest_area=0.9), Augmentation(smallest_area=0.9, random_operations=3)
    crops = [augment_photo(images, 0, varied, flip=False, seed=seed) for seed in (1, 1, 2, 3)]
    assert torch.equal(crops[0], crops[1])
    assert len({crop.numpy().tobytes() for crop in crops}) == 3
    assert not torch.equal(crops[0], augment_photo(images, 0, plain, flip=False, seed=1))
