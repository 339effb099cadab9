"""How a bundle was made: the commands of its card, pasted into a shell, make it again."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from service.model.bundle import Bundle, load_bundle
from tests.training.bundles.test_from_onnx import LABELS, write_model, write_photos
from tests.training.command_line import ENVIRONMENT, write_folder
from training.recipe import parse_recipe

TINY = (
    *("network.widths=[4, 4, 4]", "confidence.branch_hidden=[4]", "optimiser.batch_size=10", "optimiser.epochs=2"),
    *("optimiser.learning_rate=0.1", "data.split_seed=3", "data.calibration=0.4"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a folder in it where somebody works: images, a set, a classifier from elsewhere."""
    home = tmp_path_factory.mktemp("home")
    work = home / "my work"
    work.mkdir()
    write_folder(work / "my photos", each=24)
    write_folder(home / "pictures", each=20)
    write_photos(work / "photos")
    write_photos(work / "held out", seed=1)
    write_model(work / "brightness.onnx", layout="nhwc")
    (work / "labels.txt").write_text("\n".join(LABELS) + "\n")
    return work


# Several command lines in one process: starting one for each would take longer than the commands.
IN_ONE_PROCESS = """
import json, shlex, sys
from training.cli.main import main
for line in json.load(sys.stdin):
    sys.argv = shlex.split(line)
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""


def run(place: Path, command: list[str], given: str = "") -> str:
    """What a command prints in that folder."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = ENVIRONMENT | {"PATH": path, "HOME": str(place.parent)}
    done = subprocess.run(command, cwd=place, env=environment, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def type_in(place: Path, *lines: str) -> str:
    """Runs command lines of `confgate-train` one after the other."""
    return run(place, [sys.executable, "-W", "error", "-c", IN_ONE_PROCESS], json.dumps(lines))


def paste(place: Path, commands: str) -> None:
    """Pastes the commands of a card into a shell, with other folders to write to."""
    other = commands.replace("runs/", "again/runs/").replace("models/", "again/models/")
    run(place, ["bash", "-euc", other])


def commands_of_card(bundle: Path) -> str:
    """The blocks of a card below "How it was made"."""
    how = (bundle / "CARD.md").read_text().partition("## How it was made")[2]
    blocks = re.findall(r"```sh\n(.*?)```", how, re.DOTALL)
    assert blocks
    return "".join(blocks)


def same(one: Bundle, other: Bundle) -> None:
    """Weights, thresholds and figures are equal; of the version only its number differs."""
    left, right = (bundle.manifest for bundle in (one, other))
    assert one.files == other.files
    for field in ("input", "labels", "temperature", "scores", "pairs", "default", "evaluation"):
        assert getattr(left, field) == getattr(right, field), field


def test_a_training_is_made_again_from_its_card(place: Path) -> None:
    """fit on a folder with --set, --init from another run, export, calibrate: pasted, the weights are the same."""
    changes = " ".join(f"--set '{change}'" for change in TINY)
    fit = f"confgate-train fit compact-cifar10 --data 'my photos' --size 12 {changes} --workers 0"
    type_in(
        place,
        f"{fit} --out runs/first",
        f"{fit} --set confidence.budget=0.4 --init '{place}/runs/first/checkpoint.pt' --out=runs/it",
        "confgate-train export runs/it --tpr 90 --tpr 80 --out models/photos/1",
        f"confgate-train calibrate models/photos/1 --data '{place.parent}/pictures' --risk 0.3 --out models/photos/2",
    )
    made = load_bundle(place / "models" / "photos" / "2")
    commands = made.manifest.provenance.commands
    assert [shlex.split(command)[1] for command in commands] == ["fit", "fit", "export", "calibrate"]
    assert commands[3] == "confgate-train calibrate models/photos/1 --data ~/pictures --risk 0.3 --out models/photos/2"
    pasted = commands_of_card(made.folder)
    assert pasted == "\n".join(commands) + "\n"
    paste(place, pasted)
    for version in ("1", "2"):
        same(*(load_bundle(place / root / "models" / "photos" / version) for root in ("", "again")))
    recipe = parse_recipe(dict(made.manifest.provenance.resolved_recipe or {}))
    assert (recipe.data.folder, recipe.data.size, recipe.data.split_seed) == ("my photos", 12, 3)
    assert (recipe.optimiser.epochs, recipe.confidence.budget) == (2, 0.4)
    for text in ("bundle.json", "CARD.md"):
        assert str(place.parent) not in (made.folder / text).read_text()


def test_an_import_is_made_again_from_its_card(place: Path) -> None:
    """import-onnx with every kind of option, and two calibrations after it: pasted, each version is the same."""
    type_in(
        place,
        "confgate-train import-onnx brightness.onnx --labels labels.txt --calibration photos --test 'held out' "
        "--layout nhwc --mean 0.5 0.5 0.5 --std 0.25 0.25 0.25 --resize fit_crop --crop-fraction 0.9 "
        "--out models/brightness/1",
        "confgate-train calibrate models/brightness/1 --data 'held out' --tpr 90 --out models/brightness/2",
        f"confgate-train calibrate '{place}/models/brightness/2' --traffic photos --target-rejection 0.2 "
        "--out models/brightness/3",
    )
    made = load_bundle(place / "models" / "brightness" / "3")
    pasted = commands_of_card(made.folder)
    assert len(pasted.splitlines()) == 3
    paste(place, pasted)
    for version in ("1", "2", "3"):
        same(*(load_bundle(place / root / "models" / "brightness" / version) for root in ("", "again")))
    provenance = load_bundle(place / "models" / "brightness" / "1").manifest.provenance
    assert provenance.data == "calibrated on 240 labelled images of photos, tested on 240 labelled images of held out"
    options = provenance.resolved_recipe or {}
    assert (options["mean"], options["std"], options["layout"]) == ([0.5] * 3, [0.25] * 3, "nhwc")
    assert (options["resize"], options["crop_fraction"], options["labels"]) == ("fit_crop", 0.9, list(LABELS))
    assert str(place.parent) not in json.dumps(made.manifest.model_dump(mode="json"))
    shown = run(place, ["confgate", "bundle", "inspect", "models/brightness/3"])
    for line in pasted.splitlines():
        assert f"  made by    {line}\n" in shown
    assert "layout=nhwc" in shown
