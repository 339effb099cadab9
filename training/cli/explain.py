"""What a person reads about an error: what was wrong, and the option that mends it."""

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from service.errors import BundleError


def explained(problem: Exception, words: list[str]) -> str:
    """The message, and where it names a path or name that was given without its option, that option."""
    given = list(_given(words))
    if isinstance(problem, OSError):
        return _of_system(problem, given)
    message = str(problem)
    if isinstance(problem, BundleError) and (Path(problem.file).parent / "run.json").is_file():
        run = Path(problem.file).parent
        return f"{run} is a training run, expected a bundle. Make one: confgate-train export {run} --out models/NAME/1."
    arguments = {value for flag, value in given if not flag}  # the message may mean one of these instead
    flags = [flag for flag, value in given if flag and value not in arguments and _names(message, value)]
    if not flags or any(_names(message, flag) for flag in flags):
        return message
    return f"{message} ({flags[0]})"


def _names(message: str, word: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", message) is not None


def _of_system(problem: OSError, given: list[tuple[str, str]]) -> str:
    """What the system said, with the option whose path it happened under."""
    reason = problem.strerror or str(problem)
    if problem.filename is None:
        return f"{reason}. Free space, or allow reading and writing where the options point."
    file = Path(os.fsdecode(problem.filename)).absolute()
    above = {file, *file.parents}
    flag = next((flag or value for flag, value in given if Path(value).absolute() in above), None)
    where = "" if flag is None else f" ({flag})"
    return (
        f"{file}{where}: {reason}. Expected a file or folder that can be read, or a place with space that can be "
        f"written to. Allow it, or give another path."
    )


def _given(words: list[str]) -> Iterator[tuple[str, str]]:
    """Each word that may be a path or a name, with the option before it, or "" for an argument."""
    for before, word in pairwise(["", *words]):
        flag, equals, value = word.partition("=")
        if flag.startswith("--"):
            option, text = (flag, value) if equals else ("", "")
        else:
            option, text = before if before.startswith("--") and "=" not in before else "", word
        if len(text) > 1 and not re.fullmatch(r"[\d.,-]+", text):
            yield option, text
