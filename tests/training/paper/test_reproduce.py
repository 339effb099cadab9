"""From recipe to the table beside the published values: complete, shared between tables, and resumed."""

import csv
import io
import json
import shutil
from dataclasses import replace

import pytest
from rich.console import Console

from service.model.command_line import CommandLine
from service.model.scores import sigmoid
from tests.training.command_line import confgate_train
from training.errors import DataError, RecipeError
from training.evaluation.evaluate import Settings, evaluate
from training.metrics.detection import METRICS
from training.paper.published import published_rows, published_value
from training.paper.reproduction.beside import Finished, beside_tables, compare
from training.paper.reproduction.budget import budget_figure, budget_records, budget_table
from training.paper.reproduction.experiments import BUDGETS, EXPERIMENTS, plan_experiment, sets_here
from training.paper.reproduction.reproduce import Reproduction, reproduce, show_plan
from training.paper.reproduction.steps import Workspace
from training.recipe import available

TYPED = CommandLine("confgate-train reproduce 5")
STAND_INS = {"lsun_crop": "lsun_bedroom_crop", "lsun_resize": "lsun_bedroom_resize", "isun": "places_resize"}


def test_the_table_has_every_published_cell_with_ours_beside_it(reproduced):
    """Table 5 for VGG13: 8 sets × 2 methods × 5 metrics, each with the paper's value, ours, and the set it is from."""
    with (reproduced.out / "table-5" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = [row for row in published_rows("5") if row.network == "vgg13"]
    assert len(rows) == len(expected) * len(METRICS) == 80
    measured = {}
    with (reproduced.out / "table-5" / "compact-cifar10" / "evaluation.csv").open() as file:
        for record in csv.DictReader(file):
            measured[record["out_of_distribution"], record["method"]] = record
    for row in rows:
        outside, method, metric = row["out_of_distribution"], row["method"], row["metric"]
        assert float(row["published"]) == published_value("vgg13", "cifar10", outside, method, metric)
        assert row["measured_on"] == STAND_INS.get(outside, outside)
        ours = 100 * float(measured[row["measured_on"], method][metric])
        assert float(row["ours"]) == pytest.approx(ours, abs=0.006)


def test_the_table_says_what_it_is_and_what_it_is_not(reproduced):
    """The Markdown names the command, the source, the stand-ins, the quick look and the smaller network."""
    text = (reproduced.out / "table-5" / "table.md").read_text()
    assert "(paper: 41.6 / 19.2)" in text  # VGG13, All Images, FPR at 95 % TPR
    for words in (
        "confgate-train reproduce 5 --seeds 1 --scale compact",
        "arXiv:1802.04865",
        "Places (resize) for iSUN",
        "A QUICK LOOK, not a result",
        "--scale compact: a smaller network",
    ):
        assert words in text


def test_another_table_goes_on_from_what_is_there(reproduced):
    """Table 3 after an interruption: a training without its end goes on, a finished one is not touched."""
    branch, baseline = "compact-cifar10", "compact-cifar10-baseline"
    untouched = (reproduced.run(branch) / "checkpoint.pt").stat().st_mtime_ns
    (reproduced.run(baseline) / "result.json").unlink()  # as if it had been killed after its last checkpoint
    shutil.rmtree(reproduced.bundle(baseline))
    done = confgate_train(*reproduced.arguments("3"))
    assert f"{branch}-seed0: already there" in done.stdout
    assert f"{baseline}-seed0: fit" in done.stdout
    assert "goes on from step 8 of 8" in done.stdout
    assert (reproduced.run(branch) / "checkpoint.pt").stat().st_mtime_ns == untouched
    values = json.loads((reproduced.out / "table-3" / "table.json").read_text())["values"]
    assert {(v["method"], v["metric"]): v["published"] for v in values} == {
        ("baseline", "calibrated_on_ood"): 11.7,
        ("confidence", "calibrated_on_ood"): 9.1,
        ("baseline", "calibrated_on_misclassified"): 12.3,
        ("confidence", "calibrated_on_misclassified"): 10.8,
    }


def test_a_dry_run_shows_the_plan_and_does_nothing(reproduced):
    """Finished trainings are told from those to do, at both scales, and no folder appears."""
    small = confgate_train(*reproduced.arguments("5"), "--dry-run").stdout
    assert small.count("done") == 4  # fit and export of two trainings
    new = reproduced.out.parent / "paper-scale"
    console = Console(record=True, width=200, file=io.StringIO())
    show_plan(Reproduction(plan_experiment("1", 5), Workspace(new, reproduced.data, TYPED), 5), console)
    plan = console.export_text()
    assert plan.count("-seed") == 6 * 2 * 5
    assert "densenet-bc-svhn-baseline-seed4" in plan
    assert not new.exists()


def test_another_training_in_the_same_folder_is_refused(reproduced):
    """A changed recipe does not pass for the one that was trained before."""
    experiment = plan_experiment("5", 1, "compact", changes=("data.validation=30", "data.calibration=100"))
    workspace = Workspace(reproduced.out, reproduced.data, TYPED)
    with pytest.raises(RecipeError, match="holds another training"):
        reproduce(Reproduction(experiment, workspace, 1), Console(quiet=True))


def test_missing_data_is_found_before_anything_is_trained(reproduced, tmp_path):
    """Table 4 needs SVHN: the message says so and how to get it, and no run was begun."""
    out = tmp_path / "out"
    reproduction = Reproduction(plan_experiment("4", 1, "compact"), Workspace(out, reproduced.data, TYPED), 1)
    with pytest.raises(DataError, match=r"does not hold svhn.*confgate-train data download svhn"):
        reproduce(reproduction, Console(quiet=True))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("table", EXPERIMENTS)
@pytest.mark.parametrize(("scale", "variant"), [("paper", "text"), ("paper", "code"), ("compact", "text")])
def test_every_experiment_is_made_of_recipes_that_ship(table, scale, variant):
    """Each cell of each table has its trainings, and every one of them has a recipe with the right data and branch."""
    experiment = plan_experiment(table, 2, scale, variant)
    for cell in experiment.cells:
        assert len(cell.branch) == 2
        assert len(cell.baseline) == (0 if table == "budget" else 2)
        for training, enabled in [(t, True) for t in cell.branch] + [(t, False) for t in cell.baseline]:
            assert training.recipe in available()
            recipe = training.load()
            assert (recipe.data.dataset, recipe.confidence.enabled) == (cell.in_distribution, enabled)
    if table != "budget" and scale == "paper":
        published = {(row.network, row.in_distribution) for row in published_rows(table)}
        assert {(cell.network, cell.in_distribution) for cell in experiment.cells} == published


def test_the_budget_sweep_shares_the_training_of_the_usual_budget():
    """β from 0.1 to 1.0; the one of 0.3 is the very training the other tables use."""
    sweep = plan_experiment("budget", 1, "compact")
    assert [cell.branch[0].load().confidence.budget for cell in sweep.cells] == list(BUDGETS)
    assert sweep.cells[2].branch[0] in plan_experiment("5", 1, "compact").trainings
    assert len({training.name for training in sweep.trainings}) == len(BUDGETS)


def test_an_unknown_table_is_refused_by_name():
    """The message lists what there is."""
    with pytest.raises(RecipeError, match="table '7' is unknown, expected one of 1, 2, 3, 4, 5, budget"):
        plan_experiment("7", 1)


@pytest.mark.parametrize(
    ("table", "metric", "published"),
    [("1", "classification_error", [5.28, 5.44]), ("2", "auroc", [95.8, 98.0])],
)
def test_summary_tables_have_their_own_columns(reproduced, tmp_path, table, metric, published):
    """Table 1 compares the classification error too, Table 2 shows ODIN and confidence with preprocessing."""
    experiment = plan_experiment(table, 1, "compact")
    experiment = replace(
        experiment, cells=tuple(cell for cell in experiment.cells if cell.in_distribution == "cifar10")
    )
    used = sets_here(experiment, reproduced.data)
    branch, baseline = "compact-cifar10", "compact-cifar10-baseline"
    runs = {reproduced.bundle(name): reproduced.run(name) for name in (branch, baseline)}
    settings = Settings(tuple(used.values()), reproduced.data, tmp_path, "bundle", 20, runs=runs)
    evaluation = evaluate([reproduced.bundle(branch)], [reproduced.bundle(baseline)], settings)
    (group,) = evaluation.groups
    compared = compare(experiment, [Finished(experiment.cells[0], group, evaluation)], used)
    assert [c.published for c in compared if c.metric == metric and c.ood in ("", "all_images")] == published
    methods = ["odin", "confidence_preprocessed"] if table == "2" else ["baseline", "confidence"]
    assert list(dict.fromkeys(c.method for c in compared)) == methods
    (text,) = beside_tables(experiment, compared)
    assert f"(paper: {published[0]:.{2 if table == '1' else 1}f} / " in text.markdown()


def test_the_budget_table_has_detection_and_thresholds_of_each_budget(reproduced, tmp_path):
    """A row a β with its own figures; thresholds are shown as the service shows them; the picture can be drawn."""
    bundle, run = reproduced.bundle("compact-cifar10"), reproduced.run("compact-cifar10")
    settings = Settings(("all_images",), reproduced.data, tmp_path, limit=20, preprocessed=False, runs={bundle: run})
    evaluation = evaluate([bundle], [], settings)
    (group,) = evaluation.groups
    records = budget_records(dict.fromkeys(BUDGETS[:2], group), "all_images")
    assert [record["budget"] for record in records] == [0.1, 0.2]
    (row,) = group.rows("confidence", "all_images")
    assert records[0]["auroc"] == pytest.approx(row.metrics["auroc"], abs=1e-6)
    assert records[0]["best_threshold"] == pytest.approx(float(sigmoid(row.thresholds.best)), abs=1e-6)
    table = budget_table(records)
    assert table.rows[1][0] == "0.2"
    assert table.rows[0][4] == f"{100 * row.metrics['auroc']:.1f}"
    budget_figure(records).savefig(tmp_path / "budget.png")
    assert (tmp_path / "budget.png").stat().st_size > 10_000
