"""The images that a bundle's own commands name: what `import-onnx`, `learn-confidence` and `calibrate` were given."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from service.model.bundle import Input, Manifest
from training.data.seen import fingerprint_of
from training.data.splits import LabelledImages, UnlabelledImages

IMPORTED, LEARNED = "import-onnx", "learn-confidence"
PROGRAM = frozenset({"confgate-train", "training"})
COUNTED = re.compile(r"\bon (\d+) (?:un)?labelled images (held out )?of (?:.*?, fingerprint ([0-9a-f]{16}))?")
# Written into bundles since version 0.1, and found again by the next calibration: it must not change.
RECALIBRATED = "; thresholds made anew"


@dataclass(frozen=True)
class RecordedImages:
    """What the options were given, with the home folder in full; None: the splits of the training, or nothing."""

    calibration: str | None
    n_calibration: int | None  # how many images it held; None: the bundle does not say
    test: str | None
    fingerprint: str | None = None  # of the calibration images and their labels; None: the bundle does not say
    held_out: bool = False  # they are the part of `calibration` that no branch learnt from: see `held_out`


def described_images(images: LabelledImages | UnlabelledImages, shape: Input, name: str, held_out: bool = False) -> str:
    """As `recorded_images` reads it: how many there are, of what, and what they show whatever their order."""
    labelled = "unlabelled" if images.labels is None else "labelled"
    fingerprint = fingerprint_of(shape, (images.images, images.labels))
    return f"{len(images)} {labelled} images {'held out ' * held_out}of {name}, fingerprint {fingerprint}"


def is_imported(manifest: Manifest) -> bool:
    """Whether it came from an ONNX file, and so has no training whose images could be found."""
    return manifest.provenance.recipe.split(maxsplit=1)[:1] == [IMPORTED]


def recorded_images(manifest: Manifest) -> RecordedImages:
    """By the last command that set thresholds from images of the model's own kind, and the import."""
    return _recorded([shlex.split(line) for line in manifest.provenance.commands], manifest.provenance.data)


def _recorded(commands: Sequence[Sequence[str]], data: str) -> RecordedImages:
    for at, words in reversed(list(enumerate(commands))):
        if _command(words) == IMPORTED:
            return _described(data.split("; ")[0], _value(words, "--calibration"), _value(words, "--test"))
        test = _value(words, "--test") or _test_of_import(commands[:at])
        if _command(words) == LEARNED:
            said = data.split(RECALIBRATED)[0].split("; ")[-1]
            if COUNTED.search(said) is None:  # the calibration images of its training
                continue
            given = _value(words, "--calibration") or _recorded(commands[:at], data).calibration
            found = _described(said, given, test)
            return replace(found, calibration=_value(words, "--data")) if found.held_out else found
        if _command(words) != "calibrate" or _only_traffic(words):
            continue
        of_a_run = at > 0 and _command(commands[at - 1]) == "fit"  # there --data is where the folder of its training is
        given = None if of_a_run else _value(words, "--data")
        if given is not None:
            return _described(data.split("; ")[-1], given, test)
        if not any(_command(one) in (IMPORTED, LEARNED) for one in commands[:at]):
            return RecordedImages(None, None, test)
    return RecordedImages(None, None, None)


def _test_of_import(commands: Sequence[Sequence[str]]) -> str | None:
    """What the last command that could tell says about test images."""
    tests = (_value(words, "--test") for words in reversed(commands) if _command(words) in (IMPORTED, LEARNED))
    return next((test for test in tests if test is not None), None)


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


def _described(said: str, calibration: str | None, test: str | None) -> RecordedImages:
    """With the number of images and their fingerprint, as a sentence about calibration says them."""
    found = COUNTED.search(said)
    if found is None:
        return RecordedImages(calibration, None, test)
    return RecordedImages(calibration, int(found[1]), test, found[3], held_out=found[2] is not None)
