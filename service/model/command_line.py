"""How a bundle says by which commands it was made: lines to paste into a shell, without a person's own folders.

A relative path stays as it was typed. An absolute one is written relative to the current folder where it lies in it,
from `~` where it lies in the home folder, and otherwise as it was typed, because the command would not work without it.
"""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NewType

# One command line, quoted for a shell. `command_line` makes it; bundles and cards hold it as it is.
CommandLine = NewType("CommandLine", str)


def command_line(words: Iterable[object]) -> CommandLine:
    """The words as one line for a shell; paths among them are written as `shown_path` does."""
    return CommandLine(" ".join(_quoted(str(word)) for word in words))


def shown_path(path: Path | str) -> str:
    """A path as bundles hold it; text that is no absolute path stays as it is."""
    path = Path(path) if str(path).startswith("/") else path
    if isinstance(path, str) or not path.is_absolute():
        return str(path)
    home = Path.home()
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    if home != Path(home.anchor) and path.is_relative_to(home):
        return str(Path("~", path.relative_to(home)))
    return str(path)


def _quoted(word: str) -> str:
    before, equals, after = word.partition("=/")
    if equals and "/" not in before:  # --set data.folder=/home/…
        return _quoted_path(f"{before}=", shown_path(f"/{after}"))
    return _quoted_path("", shown_path(word)) if word.startswith("/") else shlex.quote(word)


def _quoted_path(before: str, shown: str) -> str:
    """Quoted, but for the home folder: a shell expands `~` only without quotes, and only where a word begins."""
    if shown == "~" or shown.startswith("~/"):
        home = '"$HOME"' if before else "~"
        return (shlex.quote(before) if before else "") + home + (f"/{shlex.quote(shown[2:])}" if shown[2:] else "")
    return shlex.quote(before + shown)
