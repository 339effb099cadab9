"""From refused images that a real service kept, by a person's labels, to a set that can be trained on."""

import csv
import json
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.model.bundle import Input
from tests.conftest import Service, make_bundle, solid
from tests.training.command_line import confgate_train, write_set
from training.data.class_folders import read_folder
from training.data.importers.captured import folder_name, import_captured
from training.data.splits import load_labelled, read_arrays, splits_for
from training.errors import DataError
from training.recipe import Data

LEVELS = (10, 60, 110, 160, 210)


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a service keeps of five grey images; being red by a little, all are taken for red."""
    folder = tmp_path_factory.mktemp("captured")
    make_bundle(folder / "models", perturbed=False)
    service = Service(folder / "models", "--capture-dir", str(folder / "kept"), "--capture-rate", "1")
    service.wait_until_serving()
    with httpx.Client(base_url=service.url, timeout=30, verify=False, trust_env=False) as client:
        for level in LEVELS:
            image = solid((level + 5, level, level), (20, 10))
            answer = client.post("/v1/predict", content=image, headers={"Content-Type": "image/png"})
            assert answer.json()["predictions"][0]["in_distribution"] is False
    assert service.stop() == 0
    return folder / "kept"


def table(root: Path) -> list[dict[str, str]]:
    with (root / "captured" / "labels.csv").open(newline="") as opened:
        return list(csv.DictReader(opened))


def fill_in(root: Path, labels: dict[str, str]) -> None:
    rows = table(root)
    for row in rows:
        row["label"] = labels.get(row["file"], row["label"])
    # As a spreadsheet would: with a mark at the beginning.
    with (root / "captured" / "labels.csv").open("w", newline="", encoding="utf-8-sig") as opened:
        writer = csv.DictWriter(opened, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def test_captures_are_laid_out_for_review(captures: Path, tmp_path: Path) -> None:
    """Pictures lie under the class the model took them for, with a table of the answers and an unlabelled set."""
    told = confgate_train("data", "import", "captured", captures, "--data-root", tmp_path, "--size", "16").stdout
    assert "5 new images" in told
    assert "5 wait for review, 0 are reviewed" in told
    folder = tmp_path / "captured"
    assert len(list((folder / "to_review" / "red").glob("*.png"))) == 5
    assert {path.name for path in (folder / "reviewed").iterdir()} == {"red", "green", "blue"}
    rows = table(tmp_path)
    assert len(rows) == 5
    told_of = {(row["label"], row["predicted"], row["model"], row["version"]) for row in rows}
    assert told_of == {("", "red", "colours", "1")}
    assert all(float(row["score_value"]) <= float(row["threshold"]) for row in rows)
    x = read_arrays("captured", tmp_path)["x"]
    assert x.shape == (5, 16, 16, 3)
    assert sorted(x[:, 0, 0].tolist()) == [[level + 5, level, level] for level in LEVELS]


def test_old_and_new_records_share_a_table(captures: Path, tmp_path: Path) -> None:
    """A record has its reason and certainty in the table; one from before there were reasons has empty cells."""
    source = tmp_path / "kept"
    shutil.copytree(captures, source)
    old = sorted(source.rglob("*.json"))[0]
    newer = {"reason", "typicality", "certainty", "certainty_threshold"}
    old.write_text(json.dumps({key: value for key, value in json.loads(old.read_text()).items() if key not in newer}))
    assert import_captured(source, tmp_path).skipped == ()
    rows = {Path(row["file"]).stem: row for row in table(tmp_path)}
    assert {rows[old.stem][name] for name in newer} == {""}
    del rows[old.stem]
    for row in rows.values():
        assert (row["reason"], row["certainty_threshold"]) == ("unfamiliar", "")
        assert float(row["certainty"]) == pytest.approx(float(row["probability"]), abs=1e-4)


def test_labels_in_the_table_and_moved_files_make_a_training_set(captures: Path, tmp_path: Path) -> None:
    """A filled table moves files, files moved by hand fill the table, importing again undoes neither."""
    write_set(tmp_path, size=12)
    import_captured(captures, tmp_path)
    first, second, third, fourth, fifth = (row["file"] for row in table(tmp_path))
    folder = tmp_path / "captured"
    fill_in(tmp_path, {first: "blue", second: " green ", third: "-"})
    (folder / "to_review" / "red" / fourth).rename(folder / "reviewed" / "red" / fourth)
    done = import_captured(captures, tmp_path)
    assert (done.new, done.waiting, done.reviewed, done.outside) == (0, 1, 3, 1)
    labels = {row["file"]: row["label"] for row in table(tmp_path)}
    assert labels == {first: "blue", second: "green", third: "-", fourth: "red", fifth: ""}
    again = import_captured(captures, tmp_path)
    assert (again.waiting, again.reviewed, again.outside) == (1, 3, 1)
    assert (folder / "outside" / third).is_file()
    # The set it is added to: names of its own, its test part untouched.
    colours = dict(read_arrays("colours", tmp_path))
    np.savez(tmp_path / "colours.npz", **colours, label_names=np.asarray(["blue", "green", "red"]))
    told = confgate_train("data", "import", "captured", captures, "--data-root", tmp_path, "--add-to", "colours").stdout
    assert "colours_captured.npz" in told
    train, test, names = load_labelled("colours_captured", tmp_path)
    assert (len(train), names) == (153, ("blue", "green", "red"))
    assert sorted(train.labels[150:].tolist()) == [0, 1, 2]
    assert test is not None
    assert np.array_equal(test.images, colours["x_test"])
    splits = splits_for(Data(dataset="colours_captured", validation=20, calibration=20), tmp_path)
    assert splits.sizes == {"train": 113, "validation": 20, "calibration": 20, "test": 30}


def test_what_is_reviewed_can_be_trained_on(captures: Path, tmp_path: Path) -> None:
    """`fit --data` reads the reviewed folder as it is: its classes are the folders, its images are decoded."""
    import_captured(captures, tmp_path)
    fill_in(tmp_path, {row["file"]: ("red", "green")[i % 2] for i, row in enumerate(table(tmp_path))})
    import_captured(captures, tmp_path)
    (tmp_path / "captured" / "reviewed" / "blue").rmdir()  # no captured image shows it
    target = Input(width=8, height=8, resize="stretch", interpolation="bicubic")
    read = read_folder(tmp_path / "captured" / "reviewed", target, lambda files, _: files)
    assert read.label_names == ("green", "red")
    assert len(read.train[0]) == 5


def test_a_label_that_is_no_class_is_named(captures: Path, tmp_path: Path) -> None:
    """A misspelt label stops the import with the row, the classes, and how to make a new one."""
    import_captured(captures, tmp_path)
    rows = table(tmp_path)
    fill_in(tmp_path, {rows[0]["file"]: "gren", rows[1]["file"]: "green"})
    with pytest.raises(DataError, match=f"{rows[0]['file']}: 'gren'.*blue, green, red, or - for none"):
        import_captured(captures, tmp_path)
    (tmp_path / "captured" / "reviewed" / "gren").mkdir()
    assert import_captured(captures, tmp_path).reviewed == 2


def test_what_is_damaged_is_skipped_and_told(captures: Path, tmp_path: Path) -> None:
    """A record or picture that is broken, or a half, is passed over; the others come in."""
    source = tmp_path / "kept"
    for file in captures.rglob("*.*"):
        (source / "colours" / "1").mkdir(parents=True, exist_ok=True)
        (source / "colours" / "1" / file.name).write_bytes(file.read_bytes())
    records = sorted(source.rglob("*.json"))
    records[0].write_text("{")
    records[1].with_suffix(".png").write_bytes(b"no picture")
    records[2].unlink()
    record = json.loads(records[3].read_text())
    records[3].write_text(json.dumps({**record, "schema_version": 2}))
    done = import_captured(source, tmp_path / "data")
    assert done.new == 1
    assert len(done.skipped) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no captured images"):
        import_captured(tmp_path / "empty", tmp_path / "nothing")
    refused = confgate_train("data", "import", "captured", tmp_path / "nope", "--data-root", tmp_path, check=False)
    assert refused.returncode == 2
    assert "is not a folder" in refused.stderr


def test_labels_become_folders() -> None:
    """Whatever a class is called, its folder is one folder inside the one it should be in."""
    assert folder_name("T-shirt/top") == "T-shirt_top"
    assert folder_name("../../etc") == "_.._etc"
    assert folder_name("..") == "_"
    assert folder_name("Ärzte & Co") == "Ärzte & Co"
