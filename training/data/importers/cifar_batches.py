"""CIFAR-10 in the forms its authors publish: cifar-10-batches-py (pickles, as torchvision keeps it) and -bin.

A pickle can run any code when it is loaded, so these are loaded with an unpickler that allows only numpy arrays and
plain containers.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data.splits import Arrays, Images, Labels
from training.errors import DataError

SIDE = 32
PIXELS = 3 * SIDE * SIDE
# What a pickled uint8 array is made of; numpy moved `core` to `_core`, and files name either.
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR-10 batch needs")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def find_batches(source: Path) -> Path | None:
    """The folder with the batches, at or below `source`; None where there is none."""
    if not source.is_dir():
        return None
    found = sorted(path for path in source.rglob("test_batch*") if path.name in ("test_batch", "test_batch.bin"))
    return found[0].parent if found else None


def read_batches(folder: Path) -> Arrays:
    """All five training batches and the test batch."""
    suffix = ".bin" if (folder / "test_batch.bin").is_file() else ""
    read = _read_binary if suffix else _read_pickle
    train = [read(_existing(folder / f"data_batch_{i}{suffix}")) for i in range(1, 6)]
    images, labels = read(_existing(folder / f"test_batch{suffix}"))
    return {
        "x_train": np.concatenate([part[0] for part in train]),
        "y_train": np.concatenate([part[1] for part in train]),
        "x_test": images,
        "y_test": labels,
    }


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError(f"{path.parent} holds no {path.name}. Expected five training batches and one test batch.")
    return path


def _read_pickle(path: Path) -> tuple[Images, Labels]:
    try:
        batch = _ArrayUnpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
        values, labels = batch["data"], np.asarray(batch["labels"], np.int64)
    except (pickle.UnpicklingError, EOFError, KeyError, IndexError, TypeError, ValueError, AttributeError) as problem:
        raise DataError(f"{path} is not a CIFAR-10 batch ({problem}).") from problem
    return _images(np.asarray(values), labels, path)


def _read_binary(path: Path) -> tuple[Images, Labels]:
    """Records of one label byte and 3,072 pixels."""
    content = np.frombuffer(path.read_bytes(), np.uint8)
    if content.size % (1 + PIXELS):
        raise DataError(f"{path} has {content.size} bytes, not a multiple of {1 + PIXELS}. Fetch it again.")
    records = content.reshape(-1, 1 + PIXELS)
    return _images(records[:, 1:], records[:, 0].astype(np.int64), path)


def _images(values: NDArray[np.generic], labels: Labels, path: Path) -> tuple[Images, Labels]:
    if values.dtype != np.uint8 or values.shape != (len(labels), PIXELS):
        raise DataError(f"{path} holds {values.dtype} {list(values.shape)}, expected uint8 [{len(labels)}, {PIXELS}].")
    return np.ascontiguousarray(values.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)), labels
