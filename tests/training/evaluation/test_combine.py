"""Evaluations made at different times: put together from their JSON files, or refused for what does not fit."""

import csv
import json
import statistics

import pytest
from typer.testing import CliRunner

from tests.training.command_line import confgate_train
from tests.training.earlier_evaluations import seeds_of, written
from training.cli.main import app
from training.errors import DataError
from training.evaluation.combine import combine, read_evaluation
from training.evaluation.write import json_of, json_text


def records(folder):
    with (folder / "evaluation.csv").open() as file:
        return {(r["out_of_distribution"], r["method"]): r for r in csv.DictReader(file)}


def test_mean_and_spread_come_from_the_files_alone(earlier, tmp_path):
    """Three trainings, one given as a folder: the tables have the mean ± std that their own values give."""
    first, second, third = seeds_of(earlier, tmp_path, 3)
    (tmp_path / "folder").mkdir()
    third = third.rename(tmp_path / "folder" / "evaluation.json")
    out = tmp_path / "out"
    done = confgate_train(
        *("evaluate", "--from", first, "--from", second, "--from", third.parent, "--out", out),
    )
    values = [
        row["metrics"]["auroc"]
        for file in (first, second, third)
        for network in json.loads(file.read_text())["groups"][0]["networks"]
        for row in network["rows"]
        if (row["method"], row["outside"]) == ("confidence", "all_images")
    ]
    found = records(out)["all_images", "confidence"]
    assert float(found["auroc"]) == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert float(found["auroc_std"]) == pytest.approx(statistics.stdev(values), abs=1e-6)
    assert (found["n_trainings"], found["auroc_low"]) == ("3", "")  # an interval is of one training
    assert "mean ± standard deviation over 3 trainings" in done.stdout
    assert "δ misclassified > δ OOD" in (out / "evaluation.md").read_text()
    networks = json.loads((out / "evaluation.json").read_text())["groups"][0]["networks"]
    assert [network["role"] for network in networks] == ["branch"] * 3 + ["baseline"] * 3
    assert all(row["intervals"] for network in networks for row in network["rows"])


def test_what_is_read_is_what_was_written(earlier):
    """Reading and writing again gives the same content, so that combinations can be combined."""
    written_again = json_text(json_of(read_evaluation(earlier), json.loads(earlier.read_text())["command"]))
    assert written_again == earlier.read_text()


def without_energy(network):
    """A network measured with one score less."""
    network["rows"] = [row for row in network["rows"] if row["method"] != "branch_energy"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.update(format=0), "has format 0, expected 1. Make it again"),
        (lambda e: e["groups"][0]["networks"][0].pop("graphs"), r"groups.0.networks.0.graphs: Field required"),
        (lambda e: e.update(limit=None), "differ in their --limit: 40 and None"),
        (lambda e: e.update(epsilon="per-set"), "differ in their choice of ε"),
        (lambda e: e["outside"].pop(), "differ in their sets of images"),
        (lambda e: e["outside"][0].update(digest="0"), "differ in their images of uniform"),
        (lambda e: e["groups"][0].update(fingerprint="0"), "on different images or splits of them: fingerprint"),
        (lambda e: e["groups"][0]["networks"].pop(), "2 bundles with a branch and 1 baselines"),
        (lambda e: e["groups"][0]["networks"][0].update(seed=0), "hold the same training: compact-cifar10, seed 0"),
        (lambda e: e["groups"][0]["networks"][0].update(recipe="other"), "differ in the recipe of the branch network"),
        (lambda e: e["groups"][0]["networks"][0].update(budget=0.5), "differ in the budget β .*: 0.3 and 0.5"),
        (lambda e: without_energy(e["groups"][0]["networks"][0]), "differ in the scores of the branch network"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(earlier, tmp_path, change, message):
    """Each difference that would make a mean of unlike things is told, with both files."""
    first, second = seeds_of(earlier, tmp_path, 2)
    content = json.loads(second.read_text())
    change(content)
    with pytest.raises(DataError, match=message):
        combine([first, written(second, content)])


def test_the_same_network_is_not_counted_twice(earlier, tmp_path):
    """Under another name and seed it has the same graphs, and is refused."""
    (again,) = seeds_of(earlier, tmp_path, 1)
    content = json.loads(again.read_text())
    for network in content["groups"][0]["networks"]:
        network.update(bundle="other/1", seed=9)
    with pytest.raises(DataError, match="hold the same training"):
        combine([earlier, written(again, content)])


def test_earlier_evaluations_are_not_mixed_with_bundles(earlier, tmp_path):
    """--from beside a bundle or an option of measuring, into its own source, a missing file, or nothing at all."""
    file, other = seeds_of(earlier, tmp_path, 2)
    kept = file.rename(tmp_path / "evaluation.json")
    for arguments, message in (
        (("models/cifar10/1", "--from", kept), "BUNDLE cannot be given beside it"),
        (("--from", kept, "--ood", "uniform"), "--ood cannot be given beside it"),
        (("--from", kept, "--limit", 20), "--limit cannot be given beside it"),
        (("--from", kept, "--from", other, "--out", tmp_path), "would replace one of the evaluations"),
        (("--from", tmp_path / "nothing"), "Expected evaluation.json, or the --out folder"),
        ((), "BUNDLE is missing"),
    ):
        problem = CliRunner().invoke(app, ["evaluate", *map(str, arguments)]).exception
        assert isinstance(problem, DataError)
        assert message in str(problem)
