"""A folder of class sub-folders to train on, with parts of its own where it has them.

Layouts: ROOT/CLASS/**/IMAGE, or ROOT/train/CLASS/… beside ROOT/test/CLASS/… and ROOT/val/CLASS/…, which may be called
valid/ or validation/. With train/ and val/ alone, val/ is the test part.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Input
from training.data.files import KINDS, Found, find_images, images_beside, named, shown, sub_folders
from training.data.folder import FileFacts, FolderImages, Watch, by_content, check_files, copies_note, without_copies
from training.errors import DataError

VALIDATION_FOLDERS = ("val", "valid", "validation")
SPLIT_FOLDERS = frozenset({"train", "test", *VALIDATION_FOLDERS})

Part = tuple[FolderImages, NDArray[np.int64]]


@dataclass(frozen=True)
class ReadFolder:
    """A checked folder. `validation` and `test` are None where the folder has no such part."""

    train: Part
    validation: Part | None
    test: Part | None
    label_names: tuple[str, ...]
    digest: bytes  # of content, classes and parts, whatever the files are called
    earlier_digest: bytes | None  # as it was computed before, in the order of names; None for parts that were not read
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Parts:
    """Where the parts of a folder are."""

    train: Path
    validation: Path | None = None
    test: Path | None = None


def is_of_splits(root: Path) -> bool:
    """Whether its sub-folders are splits. A class may be called `train`: then it holds no folders."""
    own = {path.name.lower(): path for path in sub_folders(root)}
    held_out = [name for name in own.keys() & SPLIT_FOLDERS - {"train"} if any(sub_folders(own[name]))]
    return "train" in own and any(sub_folders(own["train"])) and (bool(held_out) or own.keys() <= SPLIT_FOLDERS)


def title_of_folder(folder: Path) -> str:
    """What a folder is called in tables and cards: `photos` for photos/test."""
    place = folder.resolve()
    return shown(Path(place.parent.name if place.name.lower() in SPLIT_FOLDERS and place.parent.name else place.name))


def has_test_part(root: Path) -> bool:
    """Whether the folder divides its images into training and test itself."""
    return root.is_dir() and _parts(root).test is not None


@dataclass(frozen=True)
class Counted:
    """How many images a folder holds; `validation` and `test` are None where the folder has no such part."""

    train: int
    validation: int | None
    test: int | None


def count_images(root: Path) -> Counted:
    """Finds the images and decodes none: copies count too."""
    if not root.is_dir():
        raise DataError(f"{shown(root)} is not a folder. Expected one sub-folder of images for each class.")
    parts = _parts(root)
    names = _class_names(parts.train)
    counts = {
        part: None if folder is None else len(_files(folder, names, part == "train", []))
        for part, folder in (("train", parts.train), ("validation", parts.validation), ("test", parts.test))
    }
    return Counted(counts["train"] or 0, counts["validation"], counts["test"])


def read_folder(root: Path, target: Input, watch: Watch, by_name: bool = False) -> ReadFolder:
    """Finds, decodes and checks every image; one error names all that is wrong with the files.

    Images come in the order of their content, so that names and places do not decide which split one falls into.
    `by_name` is the order of earlier versions, for runs that they trained.
    """
    if not root.is_dir():
        raise DataError(f"{shown(root)} is not a folder. Expected one sub-folder of images for each class.")
    parts = _parts(root)
    names = _class_names(parts.train)
    notes: list[str] = []
    found = {
        # Test files come first, so that of two copies of a picture the one in the test part stays.
        part: [] if folder is None else _files(folder, names, part == "train", notes)
        for part, folder in (("test", parts.test), ("validation", parts.validation), ("train", parts.train))
    }
    part_of = {file.path: part for part, files in found.items() for file, _ in files}
    facts = check_files([file for files in found.values() for file in files], target, watch)
    _refuse_contradictions(facts, names, root)
    kept = without_copies(facts)
    _refuse_single_images(kept, part_of, names)
    notes += copies_note(len(facts) - len(kept))
    members = {part: [fact for fact in kept if part_of[fact.path] == part] for part in found}
    made: dict[str, Part] = {}
    for part, own in members.items():
        ordered = own if by_name else by_content(own)
        made[part] = FolderImages.of(ordered, target), np.asarray([fact.label for fact in ordered], np.int64)
    return ReadFolder(
        made["train"],
        None if parts.validation is None else made["validation"],
        None if parts.test is None else made["test"],
        names,
        _digest({part: by_content(own) for part, own in members.items()}, names),
        None if parts.validation is not None else _earlier_digest(kept, part_of, names),
        tuple(notes),
    )


def _digest(members: dict[str, list[FileFacts]], names: tuple[str, ...]) -> bytes:
    digest = hashlib.sha256(repr(names).encode(errors="surrogateescape"))
    for part, facts in sorted(members.items()):
        for fact in facts:
            digest.update(part.encode() + fact.digest + fact.label.to_bytes(4, "big"))
    return digest.digest()


def _earlier_digest(kept: Iterable[FileFacts], part_of: dict[Path, str], names: tuple[str, ...]) -> bytes:
    """As fingerprints of folders were made before they were free of names: runs and bundles have recorded them."""
    digest = hashlib.sha256()
    for fact in kept:
        name = names[fact.label].encode(errors="surrogateescape")
        digest.update(fact.digest + name + (b"t" if part_of[fact.path] == "test" else b"l"))
    return digest.digest()


def _parts(root: Path) -> _Parts:
    if not is_of_splits(root):
        return _Parts(root)
    own = {path.name.lower(): path for path in sub_folders(root) if any(sub_folders(path))}
    validation = [own[name] for name in VALIDATION_FOLDERS if name in own]
    if len(validation) > 1:
        raise DataError(
            f"{shown(root)} has {' and '.join(path.name for path in validation)}, which are the same split. Keep one."
        )
    held_out = validation[0] if validation else None
    if "test" not in own:
        return _Parts(own["train"], test=held_out)
    return _Parts(own["train"], held_out, own["test"])


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(path.name for path in sub_folders(folder))
    if {name.lower() for name in names} <= SPLIT_FOLDERS and names:
        raise DataError(
            f"{shown(folder)} has the split folders {', '.join(names)}, but no train/ with one sub-folder for each "
            f"class."
        )
    if len(names) < 2:
        raise DataError(
            f"{shown(folder)} has {len(names)} sub-folders, expected one for each of at least two classes: "
            f"{folder.name}/cat/1.jpg, {folder.name}/dog/1.jpg …"
        )
    return names


def _files(folder: Path, names: tuple[str, ...], required: bool, notes: list[str]) -> list[tuple[Found, int]]:
    unknown = [path.name for path in sub_folders(folder) if path.name not in names]
    if unknown:
        raise DataError(
            f"{shown(folder)} has {len(unknown)} classes that the training part lacks: {named(unknown, ', ')}."
        )
    beside = len(images_beside(folder))
    if beside:
        notes.append(f"{beside} images in {shown(folder)} itself are in no class folder and were left out")
    files: list[tuple[Found, int]] = []
    for label, name in enumerate(names):
        if not (folder / name).is_dir():
            continue
        found = find_images(folder / name)
        notes += found.notes(folder / name)
        if required and not found.files:
            raise DataError(
                f"class '{name}' is empty: {shown(folder / name)} holds no image ({KINDS}). "
                f"Add images or remove the folder."
            )
        files += ((file, label) for file in found.files)
    return files


def _refuse_single_images(kept: Iterable[FileFacts], part_of: dict[Path, str], names: tuple[str, ...]) -> None:
    """A class of one image cannot be told from that image, and nothing of it would be left to measure."""
    of_class: dict[int, list[FileFacts]] = {}
    for fact in kept:
        if part_of[fact.path] == "train":
            of_class.setdefault(fact.label, []).append(fact)
    single = [facts[0] for _, facts in sorted(of_class.items()) if len(facts) == 1]
    if single:
        listed = named([f"'{names[fact.label]}' has only {shown(fact.path)}" for fact in single])
        raise DataError(
            f"{len(single)} of {len(names)} classes have one image to train on, expected at least two that are not "
            f"copies: {listed}. Add images, or remove the folder."
        )


def _refuse_contradictions(facts: Iterable[FileFacts], names: tuple[str, ...], root: Path) -> None:
    """One picture in two classes is a mistake that nobody but the user can mend."""
    first: dict[bytes, FileFacts] = {}
    for fact in facts:
        kept = first.setdefault(fact.digest, fact)
        if kept.label != fact.label:
            raise DataError(
                f"the same picture is in two classes: {shown(kept.path.relative_to(root))} ('{names[kept.label]}') and "
                f"{shown(fact.path.relative_to(root))} ('{names[fact.label]}'). Remove one of them."
            )
