"""What a newcomer gets wrong: each mistake is one message that names what was wrong and the option that mends it."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LABELS, make_bundle
from tests.training.command_line import ENVIRONMENT, write_folder
from tests.training.test_made_by import write_colour_model
from training.cli.main import main


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, photos, a bundle, a run that was begun, an empty folder, and files where folders belong."""
    folder = tmp_path_factory.mktemp("mistakes")
    write_colour_model(folder / "model.onnx")
    write_folder(folder / "photos", each=20, classes=LABELS)
    write_folder(folder / "few", each=2, classes=LABELS)
    make_bundle(folder / "models")
    (folder / "labels.txt").write_text("\n".join(LABELS))
    (folder / "repeated.txt").write_text("red\nred\nblue\n")
    (folder / "notes.txt").write_text("hello")
    (folder / "empty").mkdir()
    (folder / "run").mkdir()
    (folder / "run" / "run.json").write_text("{}")
    (folder / "loop").symlink_to(folder / "loop")
    return folder


IMPORT = "import-onnx model.onnx --layout nhwc --labels labels.txt --calibration photos --out models/new/1"
CALIBRATE = "calibrate models/colours/1 --data photos"
FIT = "fit compact-cifar10 --out runs/a --data photos --size 12"


def instead(command: str, option: str, value: str) -> str:
    """The command with another value of one option."""
    before, _, after = command.partition(f"{option} ")
    return f"{before}{option} {value} {' '.join(after.split()[1:])}".strip()


@pytest.mark.parametrize(
    ("command", "sentences"),
    [
        (instead(IMPORT, "--labels", "nowhere.txt"), ["--labels nowhere.txt is no file", "a,b,c"]),
        (instead(IMPORT, "--labels", "photos"), ["--labels photos is a folder"]),
        (instead(IMPORT, "--labels", "model.onnx"), ["--labels model.onnx is not a text file in UTF-8"]),
        (instead(IMPORT, "--labels", "repeated.txt"), ["--labels repeated.txt has red more than once"]),
        (instead(IMPORT, "--calibration", "nowhere"), ["nowhere is not a folder", "--calibration"]),
        (instead(IMPORT, "--calibration", "notes.txt"), ["notes.txt is not a folder", "--calibration"]),
        (instead(IMPORT, "--calibration", "empty"), ["--calibration empty holds no images"]),
        (instead(IMPORT, "--labels", "red,green"), ["the graph has 3 classes", "--labels names 2. Give 3 labels"]),
        (instead(IMPORT, "--layout", "nchw"), ["expected three channels (RGB) on axis 1 for --layout nchw"]),
        (f"{IMPORT} --size 24", ["--size is 24x24", "[N,12,12,3], fixed. Leave --size out"]),
        (f"{IMPORT} --output z", ["--output z is no output of the graph, which has 'y' [N,3]"]),
        (f"{IMPORT} --ood few", ["--ood few has 6 different images, too few", "at least 20"]),
        (f"{IMPORT} --ood photos", ["--ood photos: 30 of 30 images are calibration images"]),
        (f"{IMPORT} --test photos", ["--test photos: 60 of 60 images are calibration images"]),
        (instead(IMPORT, "--calibration", "few"), ["--calibration few holds 6 images, too few", "at least 50"]),
        (f"{IMPORT} --test nowhere", ["nowhere is not a folder", "--test"]),
        (instead(IMPORT, "--out", "models/colours/1"), ["--out is models/colours/1, which exists"]),
        (instead(IMPORT, "--out", "models/colours/01"), ["--out is models/colours/01, expected models/NAME/VERSION"]),
        (instead(IMPORT, "--out", "'my models/x y/1'"), ["--out is my models/x y/1, expected", "as NAME"]),
        (instead(IMPORT, "--out", "notes.txt/new/1"), ["--out is notes.txt/new/1, but", "notes.txt is a file"]),
        (f"{IMPORT} --crop-fraction 0.8", ["--crop-fraction is for --resize fit_crop"]),
        (f"{IMPORT} --resize fit_crop --crop-fraction 2", ["--crop-fraction is 2, expected a share up to 1"]),
        (f"{IMPORT} --decode-margin 0.5", ["--decode-margin is '0.5', expected a number from 1, such as 2, or full"]),
        (f"{IMPORT} --std 0 1 1", ["--std is '0,1,1', expected values above 0"]),
        (instead(CALIBRATE, "--data", "nowhere"), ["'nowhere'", "--data"]),
        (instead(CALIBRATE, "--data", "empty"), ["--data empty holds no images"]),
        (f"{CALIBRATE} --ood nowhere", ["data set 'nowhere' is not at data/nowhere.npz", "--ood"]),
        (instead(CALIBRATE, "--data", "uniform"), ["'uniform' is noise", "it serves only as --ood uniform"]),
        (f"{CALIBRATE} --risk 2", ["--risk is 2, expected a share between 0 and 1"]),
        (f"{CALIBRATE} --alpha 0", ["--alpha is 0, expected a share between 0 and 1"]),
        (f"{CALIBRATE} --tpr 200", ["--tpr is 200, expected a whole percentage from 1 to 99"]),
        (f"{CALIBRATE} --traffic photos", ["--traffic and --target-rejection belong together"]),
        (f"{CALIBRATE} --out models/other/1", ["--out is models/other/1, expected models/colours/VERSION"]),
        (f"{CALIBRATE} --out models/colours/1", ["--out is models/colours/1, which exists"]),
        ("calibrate models/colours/1 --traffic photos --target-rejection 0.01", ["--traffic holds 60", "at least 100"]),
        ("calibrate models/colours", ["models/colours holds neither a run.json nor a bundle.json"]),
        ("export models/colours/1 --out models/new/1", ["is a bundle, expected a training run", "calibrate models"]),
        ("export nowhere --out models/new/1", ["nowhere holds no training run", "confgate-train fit"]),
        ("export run --out models/colours/1", ["--out is models/colours/1, which exists"]),
        ("evaluate run --ood uniform", ["run holds no training run", "confgate-train fit"]),
        ("report run --ood uniform --out page", ["run holds no training run", "confgate-train fit"]),
        ("evaluate nowhere --ood uniform", ["nowhere/bundle.json", "expected a bundle.json"]),
        (instead(FIT, "--data", "nowhere"), ["nowhere is not a folder", "--data"]),
        (instead(FIT, "--data", "empty"), ["empty has 0 sub-folders", "--data"]),
        (f"{FIT} --set data.calibration=60", ["data set 'photos' has 60 images to divide", "--set data.calibration="]),
        (FIT, ["optimiser.batch_size is 500", "--set optimiser.batch_size="]),
        (f"{FIT} --set optimiser.batch_size=2 --init empty", ["--init empty is a folder", "checkpoint.pt"]),
        ("fit compact-cifar10 --out runs/a --data-root nowhere", ["cifar10", "--data-root"]),
        ("data import mine photos --data-root notes.txt", ["notes.txt (--data-root): File exists"]),
        ("data import mine loop", ["loop"]),
    ],
)
def test_each_names_what_was_wrong_and_the_option(place, monkeypatch, capsys, command, sentences) -> None:
    """Exit code 2, one message, and nothing written."""
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["confgate-train", *shlex.split(command)])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == 2, told
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    for sentence in sentences:
        assert sentence in told
    assert [path for path in sorted(place.rglob("*")) if path.name != "runs" and path not in before] == []


def test_an_option_is_not_blamed_for_an_argument(place, monkeypatch, capsys) -> None:
    """The same folder as model and as --calibration: the message is about the model, and names no option."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["confgate-train", *shlex.split(IMPORT.replace("model.onnx", "photos"))])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().err
    assert told == "error: photos is a folder, expected one .onnx file. Convert a SavedModel with tf2onnx.\n"


def test_a_recommendation_that_the_images_do_not_allow_is_a_note(place, monkeypatch, capsys) -> None:
    """--use-recommended mistakes with too few mistakes: the table comes, the version too, with the usual default."""
    monkeypatch.chdir(place)
    words = [*shlex.split(CALIBRATE), "--use-recommended", "mistakes", "--risk", "0.001", "--out", "models/colours/2"]
    monkeypatch.setattr(sys, "argv", ["confgate-train", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert not ended.value.code, told.err
    assert "note: --use-recommended mistakes has no effect: the images do not allow policy 'misclassified'" in told.out
    assert "default: familiarity and certainty under policy" in told.out
    assert (place / "models" / "colours" / "2" / "bundle.json").is_file()


def test_a_full_disk_is_one_message(place, tmp_path) -> None:
    """No space for the graphs of an import: no traceback, and no part of a bundle."""
    limited = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\nfrom training.cli.main import main; main()"
    )
    words = shlex.split(instead(IMPORT, "--out", str(tmp_path / "full" / "1")))
    done = subprocess.run(
        [sys.executable, "-c", limited, *words], cwd=place, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr
    assert "Free space" in done.stderr or "free space" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.onnx"))
