"""AUGRC on mixed traffic through `evaluate`: against a reference computed another way, and files that lack it."""

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

from service.model.bundle import load_bundle
from service.model.scores import sigmoid
from tests.training.conftest import LIMIT
from tests.training.earlier_evaluations import seeds_of, written
from tests.training.paper_data import TARGET
from training.data.ood import load_ood
from training.evaluation.combine import combine, read_evaluation
from training.evaluation.in_distribution import in_distribution_of, spread_indices
from training.evaluation.tables import TextTable, notes_of, tables_of
from training.graphs.image_views import as_served
from training.graphs.run import open_graph, run_graph
from training.metrics.mixed_traffic import MIXED_AUGRC

BRANCH = "compact-cifar10"
NEW_METHODS = {f"{role}_{what}" for role in ("branch", "baseline") for what in ("neighbours", "certainty", "pair")}


def augrc_by_comparisons(own, right, ood):
    """AUGRC = (1 − AUROC) · a · (1 − a) + ½ · (1 − a)² (Traub et al. 2024), a: the share of traffic answered correctly.

    The AUROC comes from comparing each correct answer with each wrong one, not from a curve.
    """
    accuracy = 0.8 * right.mean()
    wrong = np.concatenate([own[~right], ood])
    weights = np.repeat([0.8 / len(own), 0.2 / len(ood)], [int((~right).sum()), len(ood)])
    correct = own[right][:, None]
    won = ((correct > wrong) + 0.5 * (correct == wrong)).mean(axis=0) @ weights / weights.sum()
    return (1 - won) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2


def rows_of(path):
    groups = json.loads(path.read_text())["groups"]
    return {(r["method"], r["outside"]): r["metrics"] for n in groups[0]["networks"] for r in n["rows"]}


def test_augrc_of_scores_and_pair_is_that_of_the_reference(earlier, reproduced):
    """Single scores and the pair on uniform noise, from what the forward graph says of the same images."""
    bundle = load_bundle(reproduced.bundle(BRANCH))
    own = in_distribution_of(bundle, reproduced.data, reproduced.run(BRANCH), LIMIT)
    noise = load_ood("uniform", reproduced.data, TARGET).test
    noise = noise[spread_indices(len(noise), LIMIT)]
    graph = open_graph(bundle.graph_path("forward"))
    test, calibration, foreign = (
        run_graph(graph, as_served(images, bundle.manifest.input))
        for images in (own.test.images, own.calibration.images, noise)
    )
    right = test["logits"].argmax(axis=1) == own.test.labels
    assert 0 < right.mean() < 1

    def score(name, outputs):
        return bundle.manifest.scores[name].of_images(name, outputs)

    def joint(outputs):
        reference = score("certainty", calibration)
        rank = np.asarray([np.mean(reference <= value) for value in score("certainty", outputs)])
        return np.minimum(sigmoid(score("typicality", outputs)), rank)

    found = rows_of(earlier)
    names = {"confidence": "confidence", "branch_energy": "energy", "branch_certainty": "certainty"}
    if "neighbours" in bundle.manifest.scores:
        names["branch_neighbours"] = "neighbours"
    for method, name in names.items():
        expected = augrc_by_comparisons(score(name, test), right, score(name, foreign))
        assert found[method, "uniform"][MIXED_AUGRC] == pytest.approx(expected, abs=1e-6)
    expected = augrc_by_comparisons(joint(test), right, joint(foreign))
    assert found["branch_pair", "uniform"][MIXED_AUGRC] == pytest.approx(expected, abs=1e-6)


def test_tables_and_notes_state_the_share_and_the_figure(earlier):
    """evaluation.md and evaluation.csv have the figure × 1000 and as it is; the share of OOD images is named."""
    figure = rows_of(earlier)["branch_pair", "all_images"][MIXED_AUGRC]
    text = (earlier.parent / "evaluation.md").read_text()
    table = text.partition("AUGRC × 1000 with 20 % OOD images ↓ of every score")[2]
    headings, row = (next(line for line in table.splitlines() if line.startswith(s)) for s in ("| set", "| All Images"))
    column = headings.split(" | ").index("familiarity and certainty (branch net)")
    assert row.split(" | ")[column].strip("* ") == f"{1000 * figure:.1f}"
    assert "80 % test images and 20 % OOD images, of which an accepted one counts as a wrong answer" in text
    assert f"{figure:.6f}".rstrip("0") in (earlier.parent / "evaluation.csv").read_text()


def test_a_table_of_many_scores_has_a_row_each_on_a_terminal():
    """Turned where it would be wider than long, with the same cells; a table that fits stays as it is."""
    wide = TextTable("t", ("set", *(f"score {i}" for i in range(9))), (("noise", *(f"{i}.5" for i in range(9))),))
    console = Console(width=60, file=io.StringIO())
    console.print(wide.rich())
    console.print(TextTable("t", ("set", "AUROC"), (("photos", "7.5"),)).rich())
    lines = [re.findall(r"[\w.]+(?: \w+)?", line) for line in console.file.getvalue().splitlines()]
    for row in (["set", "noise"], *([f"score {i}", f"{i}.5"] for i in range(9)), ["set", "AUROC"], ["photos", "7.5"]):
        assert row in lines


def before_augrc(content):
    """The same evaluation as an earlier version of `evaluate` wrote it."""
    for network in content["groups"][0]["networks"]:
        network["rows"] = [row for row in network["rows"] if row["method"] not in NEW_METHODS]
        for row in network["rows"]:
            del row["metrics"][MIXED_AUGRC]
    return content


def test_files_from_before_augrc_are_read_and_combined(earlier, tmp_path):
    """They have every table but that of AUGRC, and no word about it."""
    files = seeds_of(written(tmp_path / "old.json", before_augrc(json.loads(earlier.read_text()))), tmp_path, 2)
    evaluation = combine(files)
    titles = [table.title for table in tables_of(evaluation)]
    assert any("AUROC ↑ of every score" in title for title in titles)
    assert not any("AUGRC" in said for said in (*titles, *notes_of(evaluation)))


def test_a_mean_is_not_taken_over_the_trainings_that_happen_to_have_the_figure(earlier, tmp_path):
    """One of two trainings was measured before AUGRC: the mean over both is left out."""
    first, second = seeds_of(earlier, tmp_path, 2)
    content = json.loads(second.read_text())
    for network in content["groups"][0]["networks"]:
        for row in network["rows"]:
            del row["metrics"][MIXED_AUGRC]
    both = combine([first, written(second, content)]).groups[0]
    assert both.spread("confidence", "uniform", MIXED_AUGRC) is None
    assert both.spread("confidence", "uniform", "auroc").n == 2
    assert read_evaluation(first).groups[0].spread("confidence", "uniform", MIXED_AUGRC).n == 1
