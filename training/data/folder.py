"""A folder of class sub-folders as labelled images, which are decoded when they are used.

Every file is decoded once before training starts, by the code that serves: a file that cannot be served is found here,
not hours later. The same pass gives the channel statistics and a fingerprint.

Layouts: ROOT/CLASS/**/IMAGE, or ROOT/train/CLASS/… with ROOT/test/CLASS/… (or val/) for a test part of its own.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.cpus import usable_cpus
from service.errors import InvalidImage, TooLarge
from service.model.bundle import Input
from service.model.images import decode
from training.errors import DataError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
MAX_PIXELS = 200_000_000  # these are the user's own files: only an obvious mistake is rejected
TEST_FOLDERS = ("test", "val")

# Wraps the loop over files in a progress bar: (files, how many) → the same files.
Watch = Callable[[Iterable["FileFacts"], int], Iterable["FileFacts"]]


class FolderImages:
    """Images on disk that look like uint8 [N,H,W,3]; indexing decodes, `select` does not."""

    def __init__(self, paths: Sequence[Path], target: Input, sums: NDArray[np.float64]) -> None:
        self.paths, self.target = tuple(paths), target
        self.sums = sums  # [N,2,3]: sum and sum of squares of each channel, 0…1 scale, at the target size

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.paths), self.target.height, self.target.width, 3

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: int | slice | NDArray[np.int64]) -> NDArray[np.uint8]:
        if isinstance(key, (int, np.integer)):
            return self.decode_one(self.paths[key])
        chosen = [self.paths[i] for i in np.arange(len(self))[key]]
        if not chosen:
            return np.zeros((0, *self.shape[1:]), np.uint8)
        with ThreadPoolExecutor(usable_cpus()) as pool:
            return np.stack(list(pool.map(self.decode_one, chosen)))

    def decode_one(self, path: Path) -> NDArray[np.uint8]:
        """One image at the target size."""
        try:
            return decode(path.read_bytes(), self.target, MAX_PIXELS)
        except (OSError, InvalidImage, TooLarge) as problem:
            raise DataError(f"{path} was readable when the run began, but no longer is ({problem}).") from problem

    def select(self, indices: NDArray[np.int64]) -> "FolderImages":
        """The images with these indices, not decoded yet."""
        return FolderImages([self.paths[i] for i in indices], self.target, self.sums[indices])

    def channel_moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and mean square of each channel over all pixels."""
        pixels = len(self) * self.target.height * self.target.width
        total = self.sums.sum(axis=0) / pixels
        return total[0], total[1]


@dataclass(frozen=True)
class FileFacts:
    """What the first pass learns about one file."""

    path: Path
    label: int
    digest: bytes
    sums: NDArray[np.float64]
    problem: str | None


@dataclass(frozen=True)
class ReadFolder:
    """A checked folder. `test` is None if the folder has no test part."""

    train: tuple[FolderImages, NDArray[np.int64]]
    test: tuple[FolderImages, NDArray[np.int64]] | None
    label_names: tuple[str, ...]
    digest: bytes
    notes: tuple[str, ...]


def read_folder(root: Path, target: Input, watch: Watch) -> ReadFolder:
    """Finds, decodes and checks every image; one error names all that is wrong with the files."""
    train_root, test_root = _parts(root)
    names = _class_names(train_root)
    found = list(_files(train_root, names, required=True))
    of_test = list(_files(test_root, names, required=False)) if test_root else []
    # Test files come first, so that of two copies of a picture the one in the test part stays.
    facts = _check(of_test + found, target, watch)
    facts, dropped = _without_copies(facts, names, root)
    notes = (f"{dropped} files are exact copies of others and were left out",) if dropped else ()
    in_test = {path for path, _ in of_test}
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(fact.digest + names[fact.label].encode() + (b"t" if fact.path in in_test else b"l"))
    train = _as_images([fact for fact in facts if fact.path not in in_test], target)
    test = _as_images([fact for fact in facts if fact.path in in_test], target) if test_root else None
    return ReadFolder(train, test, names, digest.digest(), notes)


def _as_images(facts: list[FileFacts], target: Input) -> tuple[FolderImages, NDArray[np.int64]]:
    sums = np.stack([fact.sums for fact in facts]) if facts else np.zeros((0, 2, 3))
    return FolderImages([f.path for f in facts], target, sums), np.asarray([f.label for f in facts], np.int64)


def _parts(root: Path) -> tuple[Path, Path | None]:
    if not root.is_dir():
        raise DataError(f"{root} is not a folder. Expected one sub-folder of images for each class.")
    if (root / "train").is_dir() and any(sub_folders(root / "train")):
        for name in TEST_FOLDERS:
            if (root / name).is_dir() and any(sub_folders(root / name)):
                return root / "train", root / name
    return root, None


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(path.name for path in sub_folders(folder))
    if len(names) < 2:
        raise DataError(
            f"{folder} has {len(names)} sub-folders, expected one for each of at least two classes: "
            f"{folder.name}/cat/1.jpg, {folder.name}/dog/1.jpg …"
        )
    return names


def sub_folders(folder: Path) -> list[Path]:
    """The folders in it, sorted by name, without hidden ones."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _files(folder: Path, names: tuple[str, ...], required: bool) -> Iterator[tuple[Path, int]]:
    unknown = [path.name for path in sub_folders(folder) if path.name not in names]
    if unknown:
        raise DataError(f"{folder} has classes that the training part lacks: {', '.join(unknown)}.")
    for label, name in enumerate(names):
        files = sorted(image_files(folder / name)) if (folder / name).is_dir() else []
        if required and not files:
            raise DataError(
                f"class '{name}' is empty: {folder / name} holds no image ({', '.join(sorted(SUFFIXES))}). "
                f"Add images or remove the folder."
            )
        yield from ((path, label) for path in files)


def image_files(folder: Path) -> Iterator[Path]:
    """Every image under the folder, by its suffix; other files (thumbnail caches, notes) are ignored."""
    return (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and not path.name.startswith("."))


def _check(files: list[tuple[Path, int]], target: Input, watch: Watch) -> list[FileFacts]:
    def examine(file: tuple[Path, int]) -> FileFacts:
        path, label = file
        return _examine(path, label, target)

    with ThreadPoolExecutor(usable_cpus()) as pool:  # decoding releases the GIL, so threads are enough
        facts = list(watch(pool.map(examine, files), len(files)))
    broken = [fact for fact in facts if fact.problem]
    if broken:
        shown = "; ".join(f"{fact.path}: {fact.problem}" for fact in broken[:5])
        more = f"; and {len(broken) - 5} more" if len(broken) > 5 else ""
        raise DataError(f"{len(broken)} of {len(facts)} files cannot be used: {shown}{more}. Repair or remove them.")
    return facts


def _examine(path: Path, label: int, target: Input) -> FileFacts:
    try:
        content = path.read_bytes()
        pixels = decode(content, target, MAX_PIXELS) / 255
    except (OSError, InvalidImage, TooLarge) as problem:
        return FileFacts(path, label, b"", np.zeros((2, 3)), str(problem))
    sums = np.stack([pixels.sum(axis=(0, 1)), (pixels**2).sum(axis=(0, 1))])
    return FileFacts(path, label, hashlib.sha256(content).digest(), sums, None)


def _without_copies(facts: list[FileFacts], names: tuple[str, ...], root: Path) -> tuple[list[FileFacts], int]:
    """Keeps one copy of each picture: one of two could be trained on and the other tested on."""
    first: dict[bytes, FileFacts] = {}
    for fact in facts:
        kept = first.setdefault(fact.digest, fact)
        if kept.label != fact.label:
            raise DataError(
                f"the same picture is in two classes: {kept.path.relative_to(root)} ('{names[kept.label]}') and "
                f"{fact.path.relative_to(root)} ('{names[fact.label]}'). Remove one of them."
            )
    return list(first.values()), len(facts) - len(first)
