"""Image files as arrays: the ODIN folders and archives of out-of-distribution images, or any folder of your own."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from service.errors import InvalidImage, TooLarge
from service.model.bundle import Input
from service.model.images import decode
from training.data.catalogue import CATALOGUE
from training.data.class_folders import read_folder
from training.data.files import KINDS, SUFFIXES, find_images, named, shown, sub_folders
from training.data.folder import MAX_PIXELS, unwatched
from training.data.splits import Arrays, Images
from training.errors import DataError


def import_images(name: str, source: Path, size: int) -> Arrays:
    """A folder of your own with class sub-folders becomes a labelled set; everything else one array `x`.

    Images are taken in the order of their names: the ODIN sets number them, and image i of a crop set and of the
    resize set beside it show the same photo. Crop sets keep their pixels (the middle is cut out of larger ones);
    all others are scaled.
    """
    known = CATALOGUE.get(name)
    if source.is_dir():
        _refuse_gaps(source)
    if known is None and source.is_dir() and len(sub_folders(source)) > 1:
        return _labelled(source, size)
    entries = sorted(_from_archive(source) if source.is_file() else _from_folder(source), key=lambda entry: entry[0])
    if not entries:
        raise DataError(f"{source} holds no images ({KINDS}).")
    cut = name.endswith("_crop")
    return {"x": np.stack([_decoded(path, content, size, cut) for path, content in entries])}


def _labelled(source: Path, size: int) -> Arrays:
    read = read_folder(source, stretched(size, size), unwatched)
    # A stored set has no validation part, because a recipe divides its training part.
    train = [read.train] if read.validation is None else [read.train, read.validation]
    parts = {"": train} if read.test is None else {"_train": train, "_test": [read.test]}
    arrays: Arrays = {"label_names": np.asarray(read.label_names)}
    for suffix, members in parts.items():
        arrays[f"x{suffix}"] = np.concatenate([images[:] for images, _ in members])
        arrays[f"y{suffix}"] = np.concatenate([labels for _, labels in members])
    return arrays


def _refuse_gaps(source: Path) -> None:
    """Images of a set are known by their number: none may be left out without a word."""
    found = find_images(source)
    broken = [f"{shown(file.path)}: {file.problem}" for file in found.files if file.problem]
    broken += [f"{shown(path)}: holds no image" for path in found.not_images]
    if broken:
        raise DataError(f"{len(broken)} files cannot be used: {named(broken)}. Repair or remove them.")


def _from_folder(source: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    for path in (file.path for file in find_images(source).files):
        yield PurePosixPath(path.relative_to(source).as_posix()), path.read_bytes()


def _from_archive(source: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    if not tarfile.is_tarfile(source):
        raise DataError(f"{source} is neither a folder nor a .tar.gz archive of images.")
    with tarfile.open(source) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            # "._name" files are what macOS adds to archives beside each real file.
            if member.isfile() and path.suffix.lower() in SUFFIXES and not path.name.startswith("."):
                content = archive.extractfile(member)
                assert content is not None  # isfile() says that there is one
                yield path, content.read()


def _decoded(path: PurePosixPath, content: bytes, size: int, cut: bool) -> Images:
    try:
        if not cut:
            return decode(content, stretched(size, size), MAX_PIXELS)
        pixels = decode(content, _own_size(content), MAX_PIXELS)
    except (InvalidImage, TooLarge, OSError) as problem:
        raise DataError(f"{path}: {problem}. Repair or remove it.") from problem
    height, width = pixels.shape[:2]
    if min(height, width) < size:
        raise DataError(f"{path} is {width}×{height} pixels, too small to cut {size}×{size} out of it.")
    top, left = (height - size) // 2, (width - size) // 2
    return pixels[top : top + size, left : left + size]


def _own_size(content: bytes) -> Input:
    with Image.open(io.BytesIO(content)) as header:
        return stretched(*header.size)


def stretched(width: int, height: int) -> Input:
    """How image files are brought to the size they are stored at."""
    return Input(width=width, height=height, resize="stretch", interpolation="bicubic")
