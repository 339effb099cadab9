"""The `confgate` command with real files and a real service."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import __main__ as command
from service.settings import Settings
from tests.conftest import BLUE, GREY, RED, ROOT, BundleFolder, Service, make_bundle
from tests.pair_bundles import DARK, make_pair_bundle


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command line."""
    monkeypatch.setattr("sys.argv", ["confgate", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        command.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    files = []
    for name, content in (("red.png", RED), ("grey.png", GREY), ("notes.txt", b"text"), ("blue.png", BLUE)):
        (tmp_path / name).write_bytes(content)
        files.append(tmp_path / name)
    return files


def test_predict_prints_a_table(capsys, monkeypatch, service: Service, pictures: list[Path]) -> None:
    """Each file has its row with label, confidence and whether it is accepted, or why not; a bad file has its error."""
    code, out, _ = run(capsys, monkeypatch, "predict", "--url", service.url, *map(str, pictures))
    assert code == 1
    heading, red, grey, notes, blue = out.splitlines()
    assert heading.split()[:6] == ["file", "label", "probability", "confidence", "accepted", "reason"]
    assert red.split()[1:5] == ["red", "0.9867", "0.9975", "yes"]
    assert grey.split()[3:6] == ["0.1192", "no", "unfamiliar"]
    assert grey.endswith("confidence 0.1192 <= 0.5000 (misclassified)")
    assert "error: the bytes are not a PNG" in notes
    assert blue.split()[1] == "blue"


def test_predict_shows_both_comparisons_of_a_pair(capsys, monkeypatch, models: Path, pictures: list[Path]) -> None:
    """Under a pair each row has the reason, and both scores with their thresholds."""
    make_pair_bundle(models)
    running = Service(models).wait_until_serving()
    dark = pictures[2].with_name("dark.png")
    dark.write_bytes(DARK)
    files = map(str, (*pictures[:2], dark))
    _, out, _ = run(capsys, monkeypatch, "predict", "--url", running.url, *files)
    _, red, grey, dark_row = out.splitlines()
    assert red.split()[4] == "yes"
    assert red.endswith("typicality 0.9918 > 0.1192, certainty 0.9999 > 0.5000 (balanced)")
    assert grey.split()[4:6] == ["no", "unsure"]
    assert grey.endswith("typicality 0.6303 > 0.1192, certainty 0.3333 <= 0.5000 (balanced)")
    assert dark_row.split()[4:6] == ["no", "unfamiliar"]
    assert dark_row.endswith("typicality 0.0693 <= 0.1192, certainty 0.3333 <= 0.5000 (balanced)")
    assert running.stop() == 0


def test_predict_prints_json(capsys, monkeypatch, service: Service, pictures: list[Path]) -> None:
    """With --json the service's own answer is printed, under the options that were asked for."""
    options = ["--version", "1", "--policy", "tpr95", "--preprocess", "--top-k", "1", "--json"]
    code, out, _ = run(capsys, monkeypatch, "predict", "--url", service.url, *options, str(pictures[0]))
    answer = json.loads(out)
    assert code == 0
    assert answer["version"] == 1
    assert answer["predictions"][0]["policy"] == "tpr95"
    assert answer["predictions"][0]["score"] == "confidence_preprocessed"
    assert list(answer["predictions"][0]["probabilities"]) == ["red"]


def test_predict_names_the_files(capsys, monkeypatch, service: Service, tmp_path: Path) -> None:
    """With --json each answer has its file's name; what would break the request's form is an underscore."""
    files = [tmp_path / name for name in ("red.png", "häßlich 1.png", 'a"; name="b\r\n\r\nx\\.png', "\udcff;.png")]
    for file in files:
        file.write_bytes(RED)
    code, out, _ = run(capsys, monkeypatch, "predict", "--url", service.url, "--json", *map(str, files))
    assert code == 0
    names = [answer["file_name"] for answer in json.loads(out)["predictions"]]
    assert names == ["red.png", "häßlich 1.png", "a_; name=_b____x_.png", "_;.png"]


@pytest.fixture(scope="module")
def usual_limits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service that takes as many files and bytes in a request as it does by default."""
    models = tmp_path_factory.mktemp("models")
    make_bundle(models)
    running = Service(models).wait_until_serving()
    yield running.url
    assert running.stop() == 0


def test_predict_sends_many_files_in_parts(capsys, monkeypatch, usual_limits: str, tmp_path: Path) -> None:
    """More files than one request takes give one table, and with --json one document, in the order of the files."""
    files = [tmp_path / f"{i}.png" for i in range(70)]
    for i, file in enumerate(files):
        file.write_bytes((RED, BLUE, b"text")[i % 3])
    code, out, _ = run(capsys, monkeypatch, "predict", "--url", usual_limits, *map(str, files))
    heading, *rows = out.splitlines()
    assert code == 1
    assert heading.startswith("file")
    assert [Path(row.split()[0]) for row in rows] == files
    assert [row.split()[1] for row in rows] == [("red", "blue", "error:")[i % 3] for i in range(70)]
    _, out, _ = run(capsys, monkeypatch, "predict", "--url", usual_limits, "--json", *map(str, files))
    answer = json.loads(out)
    assert (answer["model"], answer["version"]) == ("colours", 1)
    assert [item["file_name"] for item in answer["predictions"]] == [file.name for file in files]


def test_predict_sends_large_files_in_parts(capsys, monkeypatch, usual_limits: str, tmp_path: Path) -> None:
    """A few files that are larger together than the body of one request may be (20 MB) are all answered."""
    files = [tmp_path / f"{i}.png" for i in range(3)]
    for file in files:
        file.write_bytes(RED + bytes(8_000_000))
    code, out, _ = run(capsys, monkeypatch, "predict", "--url", usual_limits, *map(str, files))
    assert code == 0
    assert [row.split()[1] for row in out.splitlines()[1:]] == ["red"] * 3


def test_predict_explains_a_refusal(capsys, monkeypatch, service: Service, pictures: list[Path]) -> None:
    """A request that the service refuses ends with its sentence and the request's id."""
    code, _, err = run(capsys, monkeypatch, "predict", "--url", service.url, "--model", "nope", str(pictures[0]))
    assert code == 2
    assert "404 No such model is loaded: model 'nope' is not loaded; served are colours, plain (request " in err


def test_predict_without_a_service_says_so(capsys, monkeypatch, pictures: list[Path]) -> None:
    """Where nothing listens the command says so, and asks whether the service is running."""
    code, _, err = run(capsys, monkeypatch, "predict", "--url", "http://127.0.0.1:9", str(pictures[0]))
    assert code == 2
    assert "no answer from http://127.0.0.1:9" in err


def test_inspect_shows_what_is_in_a_bundle(capsys, monkeypatch, bundle_folder: BundleFolder) -> None:
    """A person sees name, version, input, labels, files, thresholds, the default and the evaluation."""
    code, out, _ = run(capsys, monkeypatch, "bundle", "inspect", str(bundle_folder.folder))
    assert code == 0
    for words in (
        "colours version 1, made 2026-01-02 03:04 UTC",
        "8×8 RGB, stretch, bilinear",
        "3: red, green, blue",
        "model.onnx",
        "confidence_preprocessed, epsilon 0.25, reference of 100 images",
        "misclassified: above 0.500000 (+0.0000), rejects 10.00% (4.00% to 18.00%), detection error 20.00%",
        "n = 100: made up",
        "accuracy 1.0000 on colours test (n = 300)",
    ):
        assert words in out
    assert out.count("[default]") == 1


def test_inspect_shows_pairs(capsys, monkeypatch, models: Path) -> None:
    """A person sees both thresholds of each pair, what it refuses for which reason, and the weights of typicality."""
    _, out, _ = run(capsys, monkeypatch, "bundle", "inspect", str(make_pair_bundle(models).folder))
    for words in (
        "typicality, of neighbours (weight 1) and energy (weight 0.5) among 100 images",
        "pairs      of typicality and certainty, reference of 144 images",
        "balanced: typicality above 0.119203 (-2.0000), certainty above 0.500000 (+0.0000), rejects 15.00%: "
        "5.00% (2.50% to 7.00%) as unfamiliar, 10.00% (5.00% to 12.00%) as unsure, n = 144: made up",
        "foreign_only: typicality above 0.119203 (-2.0000), certainty not compared",
    ):
        assert words in out
    assert out.count("[default]") == 1


def test_verify_opens_the_graphs(capsys, monkeypatch, bundle_folder: BundleFolder) -> None:
    """A good bundle is called good; one whose graph has changed is refused with exit code 2."""
    code, out, _ = run(capsys, monkeypatch, "bundle", "verify", str(bundle_folder.folder))
    assert code == 0
    assert "colours version 1: good" in out
    with (bundle_folder.folder / "perturbed.onnx").open("ab") as graph:
        graph.write(b"x")
    code, _, err = run(capsys, monkeypatch, "bundle", "verify", str(bundle_folder.folder))
    assert code == 2
    assert "perturbed.onnx: size: found" in err


def test_help_explains_every_setting(capsys, monkeypatch) -> None:
    """`confgate serve --help` has each flag with its sentence, its variable and its default."""
    code, out, _ = run(capsys, monkeypatch, "serve", "--help")
    assert code == 0
    words = " ".join(out.replace("│", " ").split())
    for name, field in Settings.model_fields.items():
        assert "--" + name.replace("_", "-") in words
        assert f"CONFGATE_{name.upper()}" in words
        assert str(field.description).split(".")[0].split(":")[0] in words


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--help"], "Image classification"),
        (["serve", "--help"], "--max-batch"),
        (["keys", "new", "alice"], "cg_"),
        (["predict", "--help"], "--policy"),
        (["bundle", "inspect", "models/cifar10/5"], "cifar10 version 5"),
    ],
)
def test_commands_that_compute_nothing_need_no_onnx_runtime(arguments: list[str], said: str) -> None:
    """Help, keys, predict and inspect work where ONNX Runtime is not installed, and load no web framework."""
    program = (
        "import sys; sys.modules |= {'onnxruntime': None, 'fastapi': None, 'uvicorn': None}\n"
        "from service.cli.main import main; main()"
    )
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
