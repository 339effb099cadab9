"""A folder of the user's own images for a model that exists: to calibrate or test it on, labelled or not.

FOLDER/LABEL/**/IMAGE is labelled. A sub-folder is called like its label, or, where no label is a number, like the
label's index from 0; of labels such as `n02123045 tabby, tabby cat` the first word is enough. Characters that a
folder's name cannot have are `_`. A folder in which nothing is called like a label is unlabelled.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from service.model.bundle import Input
from training.data.class_folders import SPLIT_FOLDERS, is_of_splits
from training.data.files import KINDS, Found, find_images, images_beside, named, shown, sub_folders
from training.data.folder import FolderImages, Watch, by_content, check_files, copies_note, unwatched, without_copies
from training.data.splits import LabelledImages, UnlabelledImages
from training.errors import DataError

FEWEST_TO_CALIBRATE = 50  # 95 % of fewer could not be told from 90 %
WORDNET = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class ReadImages:
    """A checked folder, and what its user should know about it."""

    images: LabelledImages | UnlabelledImages
    notes: tuple[str, ...]


def read_calibration(
    folder: Path, labels: Sequence[str], target: Input, flag: str, watch: Watch = unwatched
) -> ReadImages:
    """Images that set thresholds: labelled, with classes missing perhaps, or unlabelled; `flag` is for messages."""
    read = read_for_model(folder, labels, target, flag, watch, "only refusal rates are calibrated")
    if len(read.images) < FEWEST_TO_CALIBRATE:
        raise DataError(
            f"{flag} {shown(folder)} holds {len(read.images)} images, too few to set a threshold. Give at least "
            f"{FEWEST_TO_CALIBRATE}, better 1,000."
        )
    return read


def read_test(folder: Path, labels: Sequence[str], target: Input, flag: str, watch: Watch = unwatched) -> ReadImages:
    """Images that figures are measured on: they must be labelled."""
    read = read_for_model(folder, labels, target, flag, watch)
    if read.images.labels is None:
        raise DataError(
            f"{flag} {shown(folder)} is not labelled, and accuracy cannot be measured. Expected one sub-folder of "
            f"images for each label, such as {shown(folder)}/{folder_name(labels[0])}."
        )
    return read


def read_for_model(
    folder: Path,
    labels: Sequence[str],
    target: Input,
    flag: str,
    watch: Watch = unwatched,
    unlabelled: str = "nothing is known of mistakes",
) -> ReadImages:
    """Every image under the folder, with its label where its sub-folder is called like one.

    `unlabelled` tells the user what follows where there are no labels.
    """
    if not folder.is_dir():
        raise DataError(f"{flag} {shown(folder)} is not a folder. Expected one sub-folder of images for each label.")
    label_of = _names(labels)
    filled = [(path, find_images(path)) for path in sub_folders(folder)]
    filled = [(path, found) for path, found in filled if found.files]
    _refuse_splits(folder, [path.name for path, _ in filled], label_of, flag)
    beside = images_beside(folder)
    known = [label_of.get(path.name) for path, _ in filled]
    notes = [note for path, found in filled for note in found.notes(path)]
    if all(label is None for label in known):
        files = [(file, 0) for file in (*beside, *(file for _, found in filled for file in found.files))]
        notes.append(_how_to_label(folder, labels, [path.name for path, _ in filled], unlabelled))
        return _checked(folder, files, False, target, watch, notes, flag)
    _refuse_strangers(folder, [path.name for path, _ in filled if path.name not in label_of], beside, labels, flag)
    missing = len(labels) - len(set(known))
    if missing:
        notes.append(
            f"{missing:,} of {len(labels):,} labels have no image in {shown(folder)}: nothing is known of them"
        )
    labelled = zip(filled, known, strict=True)
    files = [(file, label) for (_, found), label in labelled if label is not None for file in found.files]
    return _checked(folder, files, True, target, watch, notes, flag)


def read_unlabelled(folder: Path, target: Input, flag: str, watch: Watch = unwatched) -> tuple[FolderImages, list[str]]:
    """Every image under the folder, whatever its sub-folders are called, and notes."""
    if not folder.is_dir():
        raise DataError(f"{flag} {shown(folder)} is not a folder. Expected one of image files.")
    found = find_images(folder)
    if not found.files:
        raise DataError(f"{flag} {shown(folder)} holds no images ({KINDS}).")
    facts = check_files([(file, 0) for file in found.files], target, watch)
    return FolderImages.of(facts, target), list(found.notes(folder))


def folder_name(label: str) -> str:
    """A class as a folder: `T-shirt/top` cannot be one."""
    return re.sub(r'[\\/:*?"<>|\x00-\x1f]', "_", label).lstrip(".").strip() or "_"


def _names(labels: Sequence[str]) -> dict[str, int]:
    """What a sub-folder may be called, and the label it then has; a label's own name comes before all others."""
    names = {} if any(label.strip().isdecimal() for label in labels) else {str(k): k for k in range(len(labels))}
    first_words = [label.split(maxsplit=1)[0] for label in labels]
    if all(WORDNET.fullmatch(word) for word in first_words):
        names |= {word: k for k, word in enumerate(first_words)}
    safe = Counter(map(folder_name, labels))
    names |= {folder_name(label): k for k, label in enumerate(labels) if safe[folder_name(label)] == 1}
    return names | {label: k for k, label in enumerate(labels)}


def _refuse_splits(folder: Path, names: list[str], label_of: dict[str, int], flag: str) -> None:
    if any(name in label_of for name in names) or not (
        is_of_splits(folder) or (names and {name.lower() for name in names} <= SPLIT_FOLDERS)
    ):
        return
    raise DataError(
        f"{flag} {shown(folder)} holds the splits {', '.join(names)} and no labels. Give the one with images the model "
        f"has not seen: {flag} {shown(folder / names[-1])}."
    )


def _refuse_strangers(
    folder: Path, strangers: list[str], beside: tuple[Found, ...], labels: Sequence[str], flag: str
) -> None:
    if strangers:
        closest = [(name, get_close_matches(name, labels, 1, 0.5)) for name in strangers]
        said = [f"'{name}'" + (f" (did you mean '{match[0]}'?)" if match else "") for name, match in closest]
        raise DataError(
            f"{flag} {shown(folder)} has {len(strangers)} sub-folders that are no label: {named(said, ', ')}. Rename "
            f"them like labels, or move them out of the folder."
        )
    if beside:
        names = [shown(Path(file.path.name)) for file in beside]
        raise DataError(
            f"{flag} {shown(folder)} has {len(beside)} images in no label's sub-folder: {named(names, ', ')}. Move "
            f"them into one, or out of the folder."
        )


def _how_to_label(folder: Path, labels: Sequence[str], names: list[str], unlabelled: str) -> str:
    found = f"its sub-folders ({named(names, ', ')}) are no labels" if names else "it has no sub-folders"
    return (
        f"{shown(folder)} is unlabelled, because {found}: {unlabelled}. To label it, put images "
        f"into sub-folders called like the labels, such as {shown(folder)}/{folder_name(labels[0])}"
    )


def _checked(
    folder: Path,
    files: list[tuple[Found, int]],
    labelled: bool,
    target: Input,
    watch: Watch,
    notes: list[str],
    flag: str,
) -> ReadImages:
    if not files:
        raise DataError(f"{flag} {shown(folder)} holds no images ({KINDS}).")
    facts = check_files(files, target, watch)
    kept = by_content(without_copies(facts))
    label_of_content: dict[bytes, int] = {}
    for fact in facts:
        if label_of_content.setdefault(fact.digest, fact.label) != fact.label:
            raise DataError(
                f"{flag} {shown(folder)}: {shown(fact.path)} is in another label's sub-folder too. Remove one of them."
            )
    images = FolderImages.of(kept, target)
    all_notes = (*notes, *copies_note(len(facts) - len(kept)))
    if not labelled:
        return ReadImages(UnlabelledImages(images), all_notes)
    return ReadImages(LabelledImages(images, np.asarray([fact.label for fact in kept], np.int64)), all_notes)
