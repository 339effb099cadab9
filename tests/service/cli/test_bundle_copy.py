"""`confgate bundle copy`: a version under another name or number, whole or not at all."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from service.model.bundle import load_bundle
from tests.conftest import RED, ROOT, BundleFolder, Service
from tests.service.cli.test_cli import run


def test_a_copy_answers_as_the_original_under_its_new_name(capsys, monkeypatch, bundle_folder: BundleFolder) -> None:
    """Hashes, labels and thresholds are kept; name, version, title and provenance are new; the service takes it."""
    source, models = bundle_folder.folder, bundle_folder.folder.parents[1]
    (source / "CARD.md").write_text("# colours version 1\n\nFigures.\n\n## How it was made\n\nBy hand.\n")
    (source / "map.png").write_bytes(b"a picture")
    target = models / "pets" / "7"
    code, out, _ = run(capsys, monkeypatch, "bundle", "copy", str(source), str(target))
    assert code == 0
    assert f"wrote {target}" in out
    before, after = load_bundle(source), load_bundle(target)
    assert after.files == before.files
    same = {"name": "pets", "version": 7, "provenance": after.manifest.provenance}
    assert after.manifest == before.manifest.model_copy(update=same)
    command = f"confgate bundle copy {source} {target}"
    assert after.manifest.provenance.commands == (*before.manifest.provenance.commands, command)
    assert after.manifest.provenance.data == "colours; copied from colours version 1"
    card = (target / "CARD.md").read_text()
    assert card.startswith("# pets version 7\n\nFigures.\n")
    assert card.endswith(f"```sh\n{command}\n```\n")
    assert (target / "map.png").read_bytes() == b"a picture"
    _, shown, _ = run(capsys, monkeypatch, "bundle", "inspect", str(target))
    assert f"  made by    {command}\n" in shown
    served = Service(models).wait_until_serving()
    answers = [
        httpx.post(f"{served.url}/v1/predict", params={"model": name}, content=RED).json()
        for name in ("colours", "pets")
    ]
    assert (answers[1]["model"], answers[1]["version"]) == ("pets", 7)
    assert answers[1]["predictions"] == answers[0]["predictions"]
    assert served.stop() == 0


def test_a_copy_of_a_copy_names_both_commands(capsys, monkeypatch, bundle_folder: BundleFolder) -> None:
    """The commands are all there; the sentence about the origin does not grow."""
    source, models = bundle_folder.folder, bundle_folder.folder.parents[1]
    monkeypatch.chdir(models.parent)
    for first, second in (("colours/1", "colours/2"), ("colours/2", "pets/1")):
        code, _, err = run(capsys, monkeypatch, "bundle", "copy", f"models/{first}", f"models/{second}")
        assert code == 0, err
    made = load_bundle(models / "pets" / "1").manifest.provenance
    assert made.commands[-2:] == (
        "confgate bundle copy models/colours/1 models/colours/2",
        "confgate bundle copy models/colours/2 models/pets/1",
    )
    assert made.data == "colours; copied from colours version 2"
    assert load_bundle(source).manifest.provenance.data == "colours"


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("colours/1", "which exists; expected a new version: bundles are never edited"),
        ("colours/newest", "expected models/NAME/VERSION with a whole number from 1 as VERSION"),
        ("colours/07", "expected models/NAME/VERSION with a whole number from 1 as VERSION"),
        ("my pets/1", "expected models/NAME/VERSION with at most 64 letters, digits"),
        ("colours/1/CARD.md/pets/1", "CARD.md is a file; expected a folder"),
    ],
)
def test_a_target_that_cannot_be_is_refused(
    capsys, monkeypatch, bundle_folder: BundleFolder, target: str, sentence: str
) -> None:
    """What exists stays as it is, and every other wrong target is told with what was expected."""
    models = bundle_folder.folder.parents[1]
    before = {path: path.read_bytes() for path in models.rglob("*") if path.is_file()}
    code, _, err = run(capsys, monkeypatch, "bundle", "copy", str(bundle_folder.folder), str(models / target))
    assert code == 2
    assert sentence in err
    assert {path: path.read_bytes() for path in models.rglob("*") if path.is_file()} == before


def test_a_damaged_bundle_is_not_copied(capsys, monkeypatch, bundle_folder: BundleFolder) -> None:
    """The source is verified first, and nothing appears."""
    models = bundle_folder.folder.parents[1]
    with (bundle_folder.folder / "model.onnx").open("r+b") as graph:
        graph.write(b"x")
    code, _, err = run(capsys, monkeypatch, "bundle", "copy", str(bundle_folder.folder), str(models / "pets" / "1"))
    assert code == 2
    assert "model.onnx: sha256: found" in err
    assert not (models / "pets").exists()


def test_a_full_disk_leaves_nothing(bundle_folder: BundleFolder) -> None:
    """A write that fails half way is one message, and no part of the copy is left."""
    models = bundle_folder.folder.parents[1]
    limited = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)); from service.cli.main import main; main()"
    )
    command = [sys.executable, "-c", limited, "bundle", "copy", str(bundle_folder.folder), str(models / "pets" / "1")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "File too large while it was written, so nothing was kept, expected free space" in done.stderr
    assert list((models / "pets").iterdir()) == []


def test_shipped_bundles_of_earlier_versions_are_copied(tmp_path: Path) -> None:
    """Those that hold no commands yet, where neither ONNX Runtime nor a training package is installed."""
    program = (
        "import sys; sys.modules |= dict.fromkeys(['onnxruntime', 'onnx', 'torch', 'training', 'fastapi'])\n"
        "from service.cli.main import main; main()"
    )
    for name, version in (("fashion_mnist", 1), ("cifar10", 5)):
        source, target = f"models/{name}/{version}", tmp_path / name / "2"
        command = [sys.executable, "-c", program, "bundle", "copy", source, str(target)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (said,) = json.loads((target / "bundle.json").read_text())["provenance"]["commands"]
        assert said == f"confgate bundle copy {source} {target}"
        card = (target / "CARD.md").read_text()
        assert card.startswith(f"# {name} version 2\n")
        assert "`confgate-train" in card
