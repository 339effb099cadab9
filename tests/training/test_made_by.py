"""How a bundle was made: the commands of its card, pasted into a shell, make it again."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from service.model.bundle import Bundle, load_bundle
from tests.training.bundles.test_from_onnx import LABELS, SIDE, write_photos
from tests.training.command_line import ENVIRONMENT, write_folder
from training.recipe import parse_recipe

TINY = (
    *("network.widths=[4, 4, 4]", "confidence.branch_hidden=[4]", "optimiser.batch_size=10", "optimiser.epochs=1"),
    *("optimiser.learning_rate=0.1", "data.split_seed=3", "data.calibration=0.4"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a folder in it where somebody works: images, a set, a classifier from elsewhere."""
    home = tmp_path_factory.mktemp("home")
    work = home / "my work"
    work.mkdir()
    write_folder(work / "my photos", each=24)
    torch.save({"branch.2.bias": torch.ones(1)}, home / "start.pt")
    write_photos(work / "photos")
    write_photos(work / "held out", seed=1)
    write_colour_model(work / "brightness.onnx")
    (work / "labels.txt").write_text("\n".join(LABELS) + "\n")
    return work


def write_colour_model(path: Path) -> None:
    """Three logits from the mean colour of an NHWC image."""
    weights = numpy_helper.from_array(np.float32([[-1, 1, 2], [-1, 1, -1], [-1, 1, -1]]), "weights")
    nodes = [
        helper.make_node("Relu", ["x"], ["kept"], "relu"),
        helper.make_node("ReduceMean", ["kept", "sides"], ["colour"], "mean", keepdims=0),
        helper.make_node("MatMul", ["colour", "weights"], ["y"], "head"),
    ]
    sides = numpy_helper.from_array(np.int64([1, 2]), "sides")
    x, y = (
        helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", ["N", SIDE, SIDE, 3]), ("y", ["N", 3]))
    )
    graph = helper.make_graph(nodes, "colour", [x], [y], [weights, sides])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


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
    """fit on a folder with --set and --init, then export: pasted, weights and thresholds are the same."""
    changes = " ".join(f"--set '{change}'" for change in TINY)
    type_in(
        place,
        f"confgate-train fit compact-cifar10 --data '{place}/my photos' --size 12 {changes} --workers 0 "
        f"--init '{place.parent}/start.pt' --out=runs/it",
        "confgate-train export runs/it --tpr 90 --tpr 80 --out models/photos/1",
        "confgate-train calibrate models/photos/1 --tpr 85 --out models/photos/2",
    )
    made = load_bundle(place / "models" / "photos" / "1")
    fit, export = made.manifest.provenance.commands
    assert " --data 'my photos' --size 12 --init ~/start.pt " in fit
    assert export == "confgate-train export runs/it --out models/photos/1 --tpr 90 --tpr 80"
    pasted = commands_of_card(made.folder)
    assert pasted == f"{fit}\n{export}\n"
    paste(place, pasted)
    same(made, load_bundle(place / "again" / "models" / "photos" / "1"))
    recipe = parse_recipe(dict(made.manifest.provenance.resolved_recipe or {}))
    assert (recipe.data.folder, recipe.data.size, recipe.data.split_seed) == ("my photos", 12, 3)
    assert (recipe.optimiser.epochs, recipe.network.widths) == (1, (4, 4, 4))
    again = load_bundle(place / "models" / "photos" / "2").manifest  # calibrated on the folder that the recipe names
    assert again.provenance.commands == (
        fit,
        export,
        "confgate-train calibrate models/photos/1 --tpr 85 --out models/photos/2",
    )
    assert again.scores["confidence"].policies["tpr85"].n == made.manifest.scores["confidence"].policies["tpr90"].n
    for text in ("bundle.json", "CARD.md"):
        assert str(place.parent) not in (made.folder / text).read_text()


def test_an_import_is_made_again_from_its_card(place: Path) -> None:
    """import-onnx with every kind of option, and two calibrations after it: pasted, each version is the same."""
    type_in(
        place,
        "confgate-train import-onnx brightness.onnx --labels labels.txt --calibration photos --test 'held out' "
        "--layout nhwc --mean 0.5 0.5 0.5 --std 0.25 0.25 0.25 --resize fit_crop --crop-fraction 0.9 "
        "--decode-margin 4 "
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
    assert re.fullmatch(
        r"calibrated on 240 labelled images of photos, fingerprint [0-9a-f]{16}, "
        r"tested on 240 labelled images of held out, fingerprint [0-9a-f]{16}",
        provenance.data,
    )
    options = provenance.resolved_recipe or {}
    assert (options["mean"], options["std"], options["layout"]) == ([0.5] * 3, [0.25] * 3, "nhwc")
    assert (options["resize"], options["crop_fraction"], options["labels"]) == ("fit_crop", 0.9, list(LABELS))
    assert (options["decode_margin"], made.manifest.input.decode_margin) == (4, 4)
    assert str(place.parent) not in json.dumps(made.manifest.model_dump(mode="json"))
    shown = run(place, ["confgate", "bundle", "inspect", "models/brightness/3"])
    for line in pasted.splitlines():
        assert f"  made by    {line}\n" in shown
    assert "layout=nhwc" in shown
    assert "fit_crop, bilinear, crop fraction 0.9, decode margin 4" in shown
