"""docs/tutorial.md: its commands exist with their options, its pictures and links lead somewhere.

tests/training/cli/test_fit_photos.py holds that fit and export work on a folder of photos.
"""

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import typer

from service.cli.main import app as confgate
from training.cli.main import app as confgate_train

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
APPS = {"confgate": typer.main.get_command(confgate), "confgate-train": typer.main.get_command(confgate_train)}
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
# A command may stand behind settings (NAME=value), or in NAME=$(…); it ends where the shell's own signs begin.
COMMAND = re.compile(r"^(?:[A-Z_]+=(?:\$\(|\S+ +))*((?:confgate|confgate-train) .*?)(?: *[|>&)#].*)?$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def commands() -> list[str]:
    text = "".join(SHELL_BLOCK.findall(TUTORIAL)).replace("\\\n", " ")
    return COMMAND.findall(text)


def test_the_three_commands_are_there() -> None:
    """Fit, export and serve are found as they stand in the README: the pattern above does not pass over commands."""
    for command in (
        "confgate-train fit photos --data data/clothing --out runs/mine",
        "confgate-train export runs/mine --out models/mine/1",
        "confgate serve --default-model mine",
    ):
        assert command in [" ".join(found.split()) for found in commands()]


@pytest.mark.parametrize("line", commands())
def test_a_command_is_understood(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, every option and the number of arguments are those of the program."""
    program, *words = shlex.split(line)
    monkeypatch.chdir(tmp_path)
    for photo in (Path(word) for word in words if word.endswith((".jpg", ".png"))):
        photo.parent.mkdir(exist_ok=True)
        photo.touch()
    group = APPS[program]
    with group.make_context(program, words) as context:
        while isinstance(group, typer.core.TyperGroup):
            name, command, words = group.resolve_command(context, [*context._protected_args, *context.args])
            assert command is not None
            context, group = command.make_context(name, words, parent=context), command
        assert not context.args


@pytest.mark.parametrize("target", sorted(set(LINK.findall(TUTORIAL))))
def test_a_link_leads_somewhere(target: str) -> None:
    """A picture or page of the repository exists, and so does the heading that a link names."""
    if urlsplit(target).scheme:
        return
    path, _, heading = target.partition("#")
    file = ROOT / "docs" / path if path else ROOT / "docs" / "tutorial.md"
    assert file.exists()
    if heading:
        titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_pictures_are_small() -> None:
    """All pictures of the tutorial are shown in it, and none makes a clone slow."""
    for picture in (ROOT / "docs" / "tutorial").iterdir():
        assert f"tutorial/{picture.name}" in TUTORIAL
        assert picture.stat().st_size <= 150_000
