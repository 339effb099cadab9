"""Images on disk, which are decoded when they are used, and the first pass over them.

Every file is decoded once before anything is computed, by the code that serves: a file that cannot be served is found
then, not hours later. The same pass gives the channel statistics, and the hashes that recognise an image.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.cpus import usable_cpus
from service.errors import InvalidImage, TooLarge
from service.model.bundle import Input
from service.model.images import INTERPOLATION, Pixels, fit, upright
from training.data.decoded import DecodedImages, kept_decoded
from training.data.files import Found, named, shown
from training.data.seen import Hashes, hash_of
from training.errors import DataError

MAX_PIXELS = 200_000_000  # these are the user's own files: only an obvious mistake is rejected
# A whole photo, to crop from: its shorter side is at most twice the target's, and above this one only a little longer.
SHORTER_SIDE = 256
LITTLE_LONGER = 8 / 7
LONGEST_SIDE = 4096

# Wraps the loop over files in a progress bar: (files, how many) → the same files.
Watch = Callable[[Iterable["FileFacts"], int], Iterable["FileFacts"]]


def unwatched(files: Iterable["FileFacts"], _count: int) -> Iterable["FileFacts"]:
    """No progress bar."""
    return files


@dataclass(frozen=True)
class FileFacts:
    """What the first pass learns about one file."""

    path: Path
    label: int
    digest: bytes  # of the file
    pixels: int  # the hash of what the network sees: see `seen`
    sums: NDArray[np.float64]
    problem: str | None


class FolderImages:
    """Images on disk that look like uint8 [N,H,W,3]; indexing decodes, `select` does not."""

    def __init__(
        self,
        paths: Sequence[Path],
        target: Input,
        sums: NDArray[np.float64],
        hashes: Hashes,
        decoded: DecodedImages | None = None,
    ) -> None:
        self.paths, self.target = tuple(paths), target
        self._decoded = decoded  # images that need not be decoded again
        self.sums = sums  # [N,2,3]: sum and sum of squares of each channel, 0…1 scale, at the target size
        self.hashes = hashes  # [N], of the pixels at the target size

    @classmethod
    def of(cls, facts: Sequence[FileFacts], target: Input) -> "FolderImages":
        sums = np.stack([fact.sums for fact in facts]) if facts else np.zeros((0, 2, 3))
        hashes = np.asarray([fact.pixels for fact in facts], np.uint64)
        return cls([fact.path for fact in facts], target, sums, hashes, kept_decoded())

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.paths), self.target.height, self.target.width, 3

    @property
    def names(self) -> tuple[str, ...]:
        """The files, for messages."""
        return tuple(map(shown, self.paths))

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
        kept = None if self._decoded is None else self._decoded.get(path, self.target)
        return fit(self._upright(path), self.target) if kept is None else kept

    def whole(self, index: int) -> Pixels:
        """All of one image with its proportions, shrunk to a size that is enough for crops of the target's size."""
        path = self.paths[index]
        kept = None if self._decoded is None else self._decoded.get(path, self.target, whole=True)
        return whole_of(self._upright(path), self.target) if kept is None else kept

    def _upright(self, path: Path) -> Image.Image:
        try:
            return upright(path.read_bytes(), self.target, MAX_PIXELS)
        except (OSError, InvalidImage, TooLarge) as problem:
            raise DataError(
                f"{shown(path)} was readable when the run began, but no longer is ({problem})."
            ) from problem

    def select(self, indices: NDArray[np.int64]) -> "FolderImages":
        """The images with these indices, not decoded yet."""
        paths = [self.paths[i] for i in indices]
        return FolderImages(paths, self.target, self.sums[indices], self.hashes[indices], self._decoded)

    def channel_moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and mean square of each channel over all pixels."""
        pixels = len(self) * self.target.height * self.target.width
        total = self.sums.sum(axis=0) / pixels
        return total[0], total[1]


def check_files(files: Sequence[tuple[Found, int]], target: Input, watch: Watch = unwatched) -> list[FileFacts]:
    """Decodes every file, given with its label; one error names all that cannot be used.

    They are an error and not left out: images that fail are often of one camera or one class, and thresholds would be
    measured without it.
    """

    decoded = kept_decoded()

    def examine(file: tuple[Found, int]) -> FileFacts:
        found, label = file
        return _examine(found, label, target, decoded)

    with ThreadPoolExecutor(usable_cpus()) as pool:  # decoding releases the GIL, so threads are enough
        facts = list(watch(pool.map(examine, files), len(files)))
    broken = [f"{shown(fact.path)}: {fact.problem}" for fact in facts if fact.problem]
    if broken:
        raise DataError(f"{len(broken)} of {len(facts)} files cannot be used: {named(broken)}. Repair or remove them.")
    return facts


def whole_of(photo: Image.Image, target: Input) -> Pixels:
    """All of a photo with its proportions: see `FolderImages.whole`."""
    side = max(target.width, target.height)
    shorter = min(2 * side, max(SHORTER_SIDE, round(LITTLE_LONGER * side)))
    scale = min(1.0, shorter / min(photo.size), LONGEST_SIDE / max(photo.size))
    if scale < 1:
        width, height = (max(1, round(length * scale)) for length in photo.size)
        photo = photo.resize((width, height), INTERPOLATION[target.interpolation])
    return np.asarray(photo, np.uint8)


def without_copies(facts: Iterable[FileFacts]) -> list[FileFacts]:
    """The first of each group of files that are the same, byte for byte."""
    first: dict[bytes, FileFacts] = {}
    for fact in facts:
        first.setdefault(fact.digest, fact)
    return list(first.values())


def copies_note(left_out: int) -> tuple[str, ...]:
    """What to say of copies."""
    return (f"{left_out} files are exact copies of others and were left out",) if left_out else ()


def by_content(facts: Iterable[FileFacts]) -> list[FileFacts]:
    """In an order that neither names nor places change."""
    return sorted(facts, key=lambda fact: fact.digest)


def _examine(found: Found, label: int, target: Input, decoded: DecodedImages | None) -> FileFacts:
    if found.problem is not None:
        return FileFacts(found.path, label, b"", 0, np.zeros((2, 3)), found.problem)
    try:
        content = found.path.read_bytes()
        photo = upright(content, target, MAX_PIXELS)
        image = fit(photo, target)
    except (OSError, InvalidImage, TooLarge) as problem:
        return FileFacts(found.path, label, b"", 0, np.zeros((2, 3)), str(problem))
    if decoded is not None:
        decoded.put(found.path, target, image)
        if decoded.wholes:
            decoded.put(found.path, target, whole_of(photo, target), whole=True)
    pixels = image / 255
    sums = np.stack([pixels.sum(axis=(0, 1)), (pixels**2).sum(axis=(0, 1))])
    return FileFacts(found.path, label, hashlib.sha256(content).digest(), hash_of(image), sums, None)
