"""docs/results.md: its tables are those the committed evaluations give, and what they give is right."""

import json
import os
import subprocess
import sys

import pytest

from tests.training.command_line import REPOSITORY
from tests.training.earlier_evaluations import seeds_of, written
from training.errors import DataError
from training.paper.results.blocks import NOT_YET, blocks_of
from training.paper.results.gather import read_results
from training.paper.results.page import filled

DOCS = REPOSITORY / "docs"
PAGE = DOCS / "results.md"


def test_the_committed_page_is_what_the_committed_evaluations_give():
    """`make results` would change nothing, whatever evaluations are there."""
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, blocks_of(read_results(DOCS / "results"))) == page


def test_committed_evaluations_are_small_and_name_no_machine():
    """Each under 200 kB, and no absolute path in it."""
    for path in (DOCS / "results").glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert len(text) < 200_000
        assert " /" not in json.loads(text)["command"]


@pytest.fixture
def committed(earlier, tmp_path):
    """Two trainings of compact-cifar10, one with β = 0.5 and a shipped bundle; as if all images had been measured."""
    content = json.loads(earlier.read_text()) | {"limit": None}
    whole = written(tmp_path / "whole", content)
    folder = tmp_path / "results"
    folder.mkdir()
    seeds_of(whole, folder, 2)
    seeds_of(whole, folder, 1, "shipped-cifar10-5")
    (sweep,) = seeds_of(whole, folder, 1, "compact-cifar10-budget0.5")
    content = json.loads(sweep.read_text())
    content["groups"][0]["networks"][0]["budget"] = 0.5
    written(sweep, content)
    return folder


def test_the_command_fills_the_page_and_leaves_the_prose(committed, tmp_path):
    """Every table is there with the figures of the files; a second run changes nothing."""
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "training.paper.results", "--data", committed, "--page", page],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            check=True,
            capture_output=True,
        )
        text = page.read_text(encoding="utf-8")
        assert NOT_YET not in text
        assert text == filled(text, blocks_of(read_results(committed)))
    prose = PAGE.read_text(encoding="utf-8").partition("<!-- generated")[0]
    assert text.startswith(prose)


def test_each_table_has_its_figures(committed):
    """Means over both trainings, the paper's VGG13 below ours, stand-ins by name, thresholds, β and the command."""
    blocks = blocks_of(read_results(committed))
    rows = [
        next(
            row
            for network in json.loads((committed / f"compact-cifar10-seed{seed}.json").read_text())["groups"][0][
                "networks"
            ]
            for row in network["rows"]
            if (row["method"], row["outside"]) == ("confidence", "all_images")
        )
        for seed in (0, 1)
    ]
    mean = f"{50 * sum(row['metrics']['auroc'] for row in rows):.1f} ± 0.1"
    line = next(line for line in blocks["separation"].splitlines() if line.startswith("| All Images"))
    assert mean in line
    assert (
        "| set | baseline | ODIN | confidence | confidence + preprocessing | energy (branch net) |"
        in blocks["separation"]
    )
    area = 1000 * sum(row["metrics"]["augrc_20_ood"] for row in rows) / 2
    of_augrc = blocks["separation"].partition("n = 2: AUGRC × 1000 with 20 % OOD images ↓\n")[2]
    assert f"{area:.1f} ± 0.0" in next(line for line in of_augrc.splitlines() if line.startswith("| All Images"))
    assert "an accepted one counts as a wrong answer" in of_augrc
    assert "2 (seed 0, 1)" in blocks["trainings"]
    assert "5.28 / 5.44" in blocks["trainings"]  # the paper's classification error of VGG13
    assert "`docs/results/compact-cifar10-seed1.json`: `confgate-train evaluate" in blocks["trainings"]
    assert "| All Images | VGG13, paper (n = 5) | 41.6 / **19.2** |" in blocks["paper"]
    assert "| All Images | VGG13, paper (n = 5) | 20.2 / **11.2** |" in blocks["paper"]  # ODIN, with preprocessing
    ours, theirs = (blocks["paper"].index(start) for start in ("| LSUN bedrooms (resize) | c", "| LSUN (resize) | V"))
    assert ours < theirs
    assert "arXiv:1802.04865" in blocks["paper"]
    assert "| confidence | VGG13, paper (n = 5) | 9.1 | 10.8 |" in blocks["thresholds"]
    assert "δ misclassified > δ OOD for confidence: " in blocks["thresholds"]
    assert [line.split(" | ")[0] for line in blocks["budget"].splitlines() if line.startswith("| 0")] == [
        "| 0.3",
        "| 0.5",
    ]
    assert "lsun_bedroom_crop" in blocks["sets"]


def test_a_shipped_bundle_has_its_own_tables(committed):
    """It is named by its folder, and neither counts as a training nor stands in another table."""
    blocks = blocks_of(read_results(committed))
    assert "`models/cifar10/5`, n = 1: AUROC" in blocks["served"]
    assert "`models/cifar10/5`, n = 1: AUGRC × 1000" in blocks["served"]
    for name in ("separation", "paper", "thresholds", "budget", "sets"):
        assert "models/cifar10" not in blocks[name]
    assert "2 (seed 0, 1)" in blocks["trainings"]
    assert "`shipped-cifar10-5`" not in blocks["trainings"]
    assert "`docs/results/shipped-cifar10-5-seed0.json`: `confgate-train evaluate" in blocks["trainings"]


def test_one_file_is_enough(committed):
    """One training: no spread but its interval, and the sweep says that it was not measured."""
    for name in (
        *("compact-cifar10-seed1.json", "compact-cifar10-budget0.5-seed0.json"),
        "shipped-cifar10-5-seed0.json",
    ):
        (committed / name).unlink()
    blocks = blocks_of(read_results(committed))
    assert "1 (seed 0)" in blocks["trainings"]
    assert "±" not in blocks["separation"]
    assert "–" in blocks["separation"]  # of the interval
    assert blocks["budget"] == NOT_YET
    assert blocks["served"] == NOT_YET


def test_files_that_do_not_hold_what_their_names_say_are_refused(committed, tmp_path):
    """A quick look, another seed or β, a name with no seed, and a page without its markers."""
    path = committed / "compact-cifar10-budget0.5-seed0.json"
    usual = json.loads(path.read_text())
    network = usual["groups"][0]["networks"][0]
    for name, content, message in (
        (path.name, usual | {"limit": 40}, "is a quick look"),
        ("compact-cifar10-budget0.5-seed7.json", usual, r"holds the seeds \[0\], expected \[7\]"),
        ("compact-cifar10-budget0.7-seed0.json", usual, "trained with β = 0.5, not 0.7"),
        ("mine.json", usual, "expected a name like compact-cifar10-seed0.json"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        written(folder / name, content)
        with pytest.raises(DataError, match=message):
            read_results(folder)
    assert network["budget"] == 0.5
    with pytest.raises(DataError, match="the page has generated parts none, expected each of"):
        filled("# Results\n", blocks_of([]))
