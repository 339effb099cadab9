"""The image files of a folder: found in all its sub-folders, by their content, whatever their names say.

Dotfiles, the leftovers of systems and tools, empty files and files that hold no image (a licence, a list of labels) are
passed over. Images of a kind that is not served (HEIC, RAW …) are found too, because a user must know that they are not
used.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from training.errors import DataError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
KINDS = "PNG, JPEG, WebP, GIF, BMP or TIFF"
HEAD_BYTES = 32
# Folders that systems and tools make beside images.
LEFT_BEHIND = frozenset({"__macosx", "@eadir", "$recycle.bin", "system volume information"})
AT_MOST_NAMED = 10

_TIFF = (b"II*\0", b"MM\0*")
# Cameras write RAW files as TIFF: their suffixes alone tell them apart.
_RAW_SUFFIXES = frozenset({".cr2", ".nef", ".nrw", ".arw", ".sr2", ".dng", ".pef", ".srw", ".3fr", ".iiq", ".kdc"})
_RAW_HEADS = (b"FUJIFILMCCD-RAW", b"IIU\0", b"IIRO", b"IIRS", b"MMOR")
_BRANDS = {
    "HEIC": {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"},
    "AVIF": {b"avif", b"avis"},
    "RAW": {b"crx "},
}
_OTHER_HEADS = {
    "JPEG XL": (b"\xff\x0a", b"\0\0\0\x0cJXL "),
    "JPEG 2000": (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"),
    "Photoshop": (b"8BPS",),
    "BigTIFF": (b"II+\0", b"MM\0+"),
}


@dataclass(frozen=True)
class Found:
    """One file that holds an image; `problem` says why it cannot be used, where the first bytes tell."""

    path: Path
    problem: str | None = None


@dataclass(frozen=True)
class FoundImages:
    """The images of a folder in the order of their names, and the files that are images by their suffix alone."""

    files: tuple[Found, ...]
    not_images: tuple[Path, ...]

    def notes(self, folder: Path) -> tuple[str, ...]:
        """What a user should know about the files that were passed over."""
        if not self.not_images:
            return ()
        return (f"{len(self.not_images)} files under {shown(folder)} end like images but hold none, and were left out",)


def find_images(folder: Path) -> FoundImages:
    """Every image under the folder; a link back to a folder above is not followed."""
    found: list[Found] = []
    not_images: list[Path] = []
    for path in sorted(_files_under(folder, frozenset())):
        file = _examine(path)
        if file is not None:
            found.append(file)
        elif path.suffix.lower() in SUFFIXES:
            not_images.append(path)
    return FoundImages(tuple(found), tuple(not_images))


def images_beside(folder: Path) -> tuple[Found, ...]:
    """The images that lie in the folder itself."""
    files = (path for path in sorted(_entries(folder)) if not path.is_dir())
    return tuple(file for path in files if (file := _examine(path)) is not None)


def sub_folders(folder: Path) -> list[Path]:
    """The folders in it, sorted by name, without hidden ones and what tools leave behind."""
    return sorted(path for path in _entries(folder) if path.is_dir())


def shown(path: Path) -> str:
    """A path for a message: names may hold bytes that are no text, and line breaks."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def named(names: list[str], separator: str = "; ") -> str:
    """The first names, and how many more there are."""
    more = len(names) - AT_MOST_NAMED
    return separator.join(names[:AT_MOST_NAMED]) + (f"{separator}and {more} more" if more > 0 else "")


def _files_under(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:  # a link back
        return
    for path in _entries(folder):
        if path.is_dir():
            yield from _files_under(path, above | {here})
        else:
            yield path


def _entries(folder: Path) -> Iterator[Path]:
    try:
        entries = list(folder.iterdir())
    except OSError as problem:
        raise DataError(
            f"{shown(folder)} cannot be read ({problem.strerror}). Allow reading it, or move it out of the folder."
        ) from problem
    return (path for path in entries if not path.name.startswith(".") and path.name.lower() not in LEFT_BEHIND)


def _examine(path: Path) -> Found | None:
    """The file, if it holds an image of any kind; None for what is none."""
    looks_like_one = path.suffix.lower() in SUFFIXES
    if not path.exists():
        return Found(path, "is a link to a file that does not exist") if looks_like_one else None
    if not path.is_file():  # a socket or a pipe
        return None
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as problem:
        return Found(path, f"cannot be read ({problem.strerror})") if looks_like_one else None
    kind = _unserved_kind(head, path.suffix.lower())
    if kind is not None:
        return Found(path, f"is a {kind} image, which is not served; convert it to JPEG or PNG")
    return Found(path) if _is_served(head) else None


def _is_served(head: bytes) -> bool:
    """Whether the file begins like one of a kind that is served. Two letters are too few to know a BMP by."""
    if head.startswith(b"BM"):
        return len(head) >= 18 and head[6:10] == bytes(4) and int.from_bytes(head[14:18], "little") in range(12, 125)
    if head.startswith(b"RIFF"):
        return head[8:12] == b"WEBP"
    return head.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", *_TIFF))


def _unserved_kind(head: bytes, suffix: str) -> str | None:
    if (head.startswith(_TIFF) and suffix in _RAW_SUFFIXES) or head.startswith(_RAW_HEADS):
        return "RAW"
    if head[4:8] == b"ftyp":
        # The major brand comes first; others that the file is compatible with follow after its version.
        brands = [head[at : at + 4] for at in (8, *range(16, len(head), 4))]
        named_kinds = (kind for brand in brands for kind, known in _BRANDS.items() if brand in known)
        return next(named_kinds, None)
    return next((kind for kind, heads in _OTHER_HEADS.items() if head.startswith(heads)), None)
