"""The images that a bundle's own commands name: what `import-onnx` and `calibrate` were given."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from service.model.bundle import Input, Manifest
from training.data.seen import fingerprint_of
from training.data.splits import LabelledImages, UnlabelledImages

IMPORTED = "import-onnx"
PROGRAM = frozenset({"confgate-train", "training"})
COUNTED = re.compile(r"\bon (\d+) (?:un)?labelled images of (?:.*?, fingerprint ([0-9a-f]{16}))?")


@dataclass(frozen=True)
class RecordedImages:
    """What the options were given, with the home folder in full; None: the splits of the training, or nothing."""

    calibration: str | None
    n_calibration: int | None  # how many images it held; None: the bundle does not say
    test: str | None
    fingerprint: str | None = None  # of the calibration images and their labels; None: the bundle does not say


def described_images(images: LabelledImages | UnlabelledImages, shape: Input, name: str) -> str:
    """As `recorded_images` reads it: how many there are, of what, and what they show whatever their order."""
    labelled = "unlabelled" if images.labels is None else "labelled"
    fingerprint = fingerprint_of(shape, (images.images, images.labels))
    return f"{len(images)} {labelled} images of {name}, fingerprint {fingerprint}"


def is_imported(manifest: Manifest) -> bool:
    """Whether it came from an ONNX file, and so has no training whose images could be found."""
    return manifest.provenance.recipe.split(maxsplit=1)[:1] == [IMPORTED]


def recorded_images(manifest: Manifest) -> RecordedImages:
    """By the last command that set thresholds from images of the model's own kind, and the import."""
    commands = [shlex.split(line) for line in manifest.provenance.commands]
    data = manifest.provenance.data
    for at, words in reversed(list(enumerate(commands))):
        if _command(words) == IMPORTED:
            n, fingerprint = _described(data, 0)
            return RecordedImages(_value(words, "--calibration"), n, _value(words, "--test"), fingerprint)
        if _command(words) != "calibrate" or _only_traffic(words):
            continue
        of_a_run = at > 0 and _command(commands[at - 1]) == "fit"  # there --data is where the folder of its training is
        given = None if of_a_run else _value(words, "--data")
        imported = next((one for one in commands[:at] if _command(one) == IMPORTED), None)
        test = None if imported is None else _value(imported, "--test")
        if given is None and imported is not None:
            continue
        n, fingerprint = (None, None) if given is None else _described(data, -1)
        return RecordedImages(given, n, test, fingerprint)
    return RecordedImages(None, None, None)


def _command(words: Sequence[str]) -> str | None:
    """`fit` of `confgate-train fit …` and of `torchrun … -m training fit …`; None for other programs."""
    return next((after for word, after in pairwise(words) if word in PROGRAM), None)


def _value(words: Sequence[str], option: str) -> str | None:
    """As a bundle holds it: the option in its long form, and its value as the next word."""
    if option not in words[:-1]:
        return None
    value = words[words.index(option) + 1]
    return str(Path(value).expanduser()) if value.startswith("~") else value


def _only_traffic(words: Sequence[str]) -> bool:
    """Unlabelled traffic alone adds one policy; all other thresholds stay what they were."""
    return "--traffic" in words and "--data" not in words and "--ood" not in words


def _described(data: str, which: int) -> tuple[int | None, str | None]:
    """The number of images and their fingerprint in the first or the last sentence about calibration."""
    parts = data.split("; ")
    found = COUNTED.search(parts[which])
    return (None, None) if found is None else (int(found[1]), found[2])
