"""Command lines that a bundle keeps: a shell reads the same words, and no home folder is named."""

import os
import subprocess
from pathlib import Path

import pytest

from service.model.command_line import command_line, shown_path


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, inside of somebody's home."""
    folder = tmp_path / "home of alice" / "work"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    return folder


@pytest.mark.parametrize(
    "word",
    [
        *(
            "plain",
            "two words",
            "it's",
            'a "quoted" one',
            "$HOME",
            "`ls`",
            "*.png",
            "~",
            "a;b",
            "",
            "optimiser.epochs=2",
        ),
        *("network.widths=[8, 8]", "photos/été", "--out=a b", "-1", "a=/etc/passwd", "/etc/my file"),
    ],
)
def test_a_shell_reads_each_word_as_it_was_typed(word: str) -> None:
    """Nothing is expanded or divided."""
    line = command_line(["printf", "%s|", word, "end"])
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == f"{word}|end|"


@pytest.mark.parametrize(
    ("inside", "shown"),
    [
        ("work/photos", "photos"),
        ("work/my photos", "'my photos'"),
        ("pictures", "~/pictures"),
        ("my pictures/a", "~/'my pictures/a'"),
        ("", "~"),
    ],
)
def test_an_absolute_path_names_no_home_folder(work: Path, inside: str, shown: str) -> None:
    """It is relative to the current folder, or to the home folder, and a shell finds the same place."""
    path = work.parent / inside
    line = command_line(["echo", path])
    assert line == f"echo {shown}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert Path(done.stdout.removesuffix("\n")).absolute() == path


def test_a_path_behind_an_equals_sign_is_one_too(work: Path) -> None:
    """As in --set data.folder=/home/…, where a shell expands no tilde."""
    line = command_line(["echo", f"data.folder={work.parent}/my pictures"])
    assert line == """echo data.folder="$HOME"/'my pictures'"""
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout == f"data.folder={work.parent}/my pictures\n"


def test_other_paths_stay(work: Path) -> None:
    """What lies elsewhere is where the command needs it; what is relative was typed so."""
    assert shown_path(Path("/data/photos")) == "/data/photos"
    assert shown_path("../photos") == "../photos"
    assert shown_path(work / "runs") == "runs"
