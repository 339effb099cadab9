"""`confgate-train evaluate`: figures equal to those computed from the graphs, kept scores, and clear refusals."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.model.bundle import load_bundle
from service.model.scores import score_images
from tests.training.command_line import confgate_train
from tests.training.conftest import LIMIT
from tests.training.paper_data import TARGET
from training.calibration.epsilon import EPSILONS
from training.data.ood import load_ood
from training.errors import DataError
from training.evaluation.evaluate import Group, Settings, Spread, evaluate
from training.evaluation.in_distribution import in_distribution_of, spread_indices
from training.evaluation.measure import Measured, MeasuredNetwork, Thresholds, measure_network
from training.evaluation.ood_sets import load_sets
from training.evaluation.outputs import BundleOutputs, ImageSet
from training.evaluation.scores import NetworkScores
from training.evaluation.tables import pair_cell
from training.graphs.image_views import as_served
from training.graphs.run import open_graph, run_graph
from training.metrics.detection import auroc, bootstrap_interval, detection_error, detection_metrics, fpr_at_tpr

BRANCH, BASELINE = "compact-cifar10", "compact-cifar10-baseline"
SIZE = 12


@pytest.fixture(scope="module")
def evaluated(reproduced, tmp_path_factory):
    """The folder that the command wrote, and what it printed."""
    out = tmp_path_factory.mktemp("evaluated")
    done = confgate_train(
        *("evaluate", reproduced.bundle(BRANCH), "--baseline", reproduced.bundle(BASELINE)),
        *("--ood", "uniform", "--ood", "all_images", "--run", reproduced.run(BRANCH), "--limit", LIMIT),
        *("--data-root", reproduced.data, "--out", out, "--device", "cpu"),
    )
    return out, done.stdout


def limited(images):
    return images[spread_indices(len(images), LIMIT)]


def scores_of(bundle, images, score):
    """One score of every image, straight from the forward graph."""
    outputs = run_graph(open_graph(bundle.graph_path("forward")), as_served(images, bundle.manifest.input))
    return bundle.manifest.scores[score].of_images(score, outputs)


def records(path: Path):
    with path.open() as file:
        return {(r["out_of_distribution"], r["method"]): r for r in csv.DictReader(file)}


def test_figures_equal_those_computed_from_the_graph(evaluated, reproduced):
    """Confidence and the branch network's own energy on uniform noise, the baseline's softmax on All Images."""
    found = records(evaluated[0] / "evaluation.csv")
    parts = ("tinyimagenet_crop", "tinyimagenet_resize", "lsun_bedroom_crop", "lsun_bedroom_resize", "places_resize")
    outside = {
        "uniform": limited(load_ood("uniform", reproduced.data, TARGET).test),
        "all_images": np.concatenate([limited(load_ood(p, reproduced.data, TARGET).test) for p in parts]),
    }
    for recipe, method, score, name in (
        (BRANCH, "confidence", "confidence", "uniform"),
        (BRANCH, "branch_energy", "energy", "uniform"),
        (BASELINE, "baseline", "max_softmax", "all_images"),
    ):
        bundle = load_bundle(reproduced.bundle(recipe))
        test = limited(in_distribution_of(bundle, reproduced.data, reproduced.run(recipe)).test.images)
        metrics = detection_metrics(scores_of(bundle, test, score), scores_of(bundle, outside[name], score))
        for metric in ("fpr_at_95_tpr", "detection_error", "auroc", "aupr_in", "aupr_out"):
            assert float(found[name, method][metric]) == pytest.approx(getattr(metrics, metric), abs=1e-6)
        assert int(found[name, method]["n_outside"]) == len(outside[name])


def test_epsilon_is_the_best_one_on_calibration_images(evaluated, reproduced):
    """ODIN's and the confidence's ε on uniform noise have the least detection error of the grid on held-out images."""
    found = records(evaluated[0] / "evaluation.csv")
    noise = limited(load_ood("uniform", reproduced.data, TARGET).calibration)
    for recipe, method in ((BASELINE, "odin"), (BRANCH, "confidence_preprocessed")):
        bundle = load_bundle(reproduced.bundle(recipe))
        own = limited(in_distribution_of(bundle, reproduced.data, reproduced.run(recipe)).calibration.images)
        graph = open_graph(bundle.graph_path("perturbed"))
        temperature = bundle.manifest.scores[method].temperature
        errors = []
        for epsilon in EPSILONS:
            inside, outside = (
                score_images(method, run_graph(graph, images, epsilon=epsilon), temperature) for images in (own, noise)
            )
            errors.append(detection_error(inside, outside).detection_error)
        chosen = float(found["uniform", method]["epsilon"])
        assert errors[EPSILONS.index(chosen)] == pytest.approx(min(errors), abs=0.02)  # batches may round otherwise


def test_the_four_files_say_the_same(evaluated):
    """Markdown has the value of the CSV, JSON its thresholds, and all mark the quick look."""
    out, printed = evaluated
    text = (out / "evaluation.md").read_text()
    whole = json.loads((out / "evaluation.json").read_text())
    found = records(out / "evaluation.csv")
    auroc = 100 * float(found["all_images", "confidence"]["auroc"])
    values = {f"{auroc + rounding:.1f}" for rounding in (-5e-5, 5e-5)}  # the CSV has four decimals of a per cent
    assert any(value in text for value in values)
    assert any(value in printed for value in values)
    assert "A QUICK LOOK, not a result" in text
    assert "A QUICK LOOK" in printed
    assert whole["limit"] == LIMIT
    assert "as in the paper" in " ".join(whole["notes"])  # how ε was chosen
    rows = {(r["outside"], r["method"]): r for network in whole["groups"][0]["networks"] for r in network["rows"]}
    with (out / "thresholds.csv").open() as file:
        for record in csv.DictReader(file):
            thresholds = rows[record["out_of_distribution"], record["method"]]["thresholds"]
            assert float(record["on_ood_error"]) == thresholds["on_ood_error"] >= thresholds["best_error"]
            if record["on_misclassified"]:
                above = float(record["on_misclassified"]) > float(record["on_ood"])
                assert record["misclassified_above_ood"] == str(above)


def test_intervals_are_those_of_resampled_scores(earlier, reproduced):
    """JSON and CSV have the bootstrap interval of the graph's own scores, and the table shows it behind the value."""
    bundle = load_bundle(reproduced.bundle(BRANCH))
    test = limited(in_distribution_of(bundle, reproduced.data, reproduced.run(BRANCH)).test.images)
    noise = limited(load_ood("uniform", reproduced.data, TARGET).test)
    inside, outside = (np.sort(scores_of(bundle, images, "energy")) for images in (test, noise))
    found = records(earlier.parent / "evaluation.csv")["uniform", "branch_energy"]
    for name, metric in (("auroc", auroc), ("fpr_at_95_tpr", fpr_at_tpr)):
        low, high = bootstrap_interval(metric, inside, outside)
        assert (float(found[f"{name}_low"]), float(found[f"{name}_high"])) == pytest.approx((low, high), abs=1e-6)
        assert f"({100 * low:.1f}–{100 * high:.1f})" in (earlier.parent / "evaluation.md").read_text()
    networks = json.loads(earlier.read_text())["groups"][0]["networks"]
    assert all(len(row["intervals"]) == 6 for network in networks for row in network["rows"])


def test_nothing_is_tuned_on_test_images(reproduced, tmp_path):
    """Other test images, in-distribution and OOD, leave every ε and both calibrated thresholds as they were."""
    bundle = load_bundle(reproduced.bundle(BRANCH))
    inside = in_distribution_of(bundle, reproduced.data, reproduced.run(BRANCH), LIMIT)
    (outside,) = load_sets(["gaussian"], reproduced.data, TARGET, LIMIT)
    noise = np.random.default_rng(0).integers(0, 256, (30, SIZE, SIZE, 3), dtype=np.uint8)
    other = replace(inside, test=inside.test.take(np.arange(5)))
    scores = NetworkScores(BundleOutputs(bundle, tmp_path, "cpu"))
    usual = measure_network("branch", scores, inside, [outside], "per-set")
    changed = replace(outside, test=(ImageSet("gaussian test", noise),))
    again = measure_network("branch", scores, other, [changed], "per-set")
    assert usual.classification_error != again.classification_error
    for a, b in zip(usual.rows, again.rows, strict=True):
        assert (a.epsilon, a.thresholds.on_ood, a.thresholds.on_misclassified) == (
            *(b.epsilon, b.thresholds.on_ood, b.thresholds.on_misclassified),
        )


def test_scores_are_kept_and_a_cut_off_file_is_made_again(reproduced, tmp_path):
    """A second pass computes nothing; a file that was cut off is computed again, with the same figures."""
    computed = []
    settings = Settings(("uniform",), reproduced.data, tmp_path, limit=20, device="cpu", preprocessed=False)
    settings = replace(settings, runs={reproduced.bundle(BRANCH): reproduced.run(BRANCH)})

    def pass_over():
        computed.clear()
        return evaluate([reproduced.bundle(BRANCH)], [], settings, lambda *what: computed.append(what)).groups

    first = pass_over()
    assert computed
    assert pass_over() == first
    assert not computed
    kept = sorted((tmp_path / "scores").rglob("*.npz"))
    kept[0].write_bytes(kept[0].read_bytes()[:100])
    assert pass_over() == first
    assert len({what for what, _, _ in computed}) == 1


@pytest.mark.parametrize("choice", ["per-model", "bundle"])
def test_one_epsilon_for_a_model_or_the_one_that_is_served(reproduced, tmp_path, choice):
    """`per-model` gives all sets the same ε, `bundle` the one in bundle.json."""
    bundle = load_bundle(reproduced.bundle(BRANCH))
    settings = Settings(("uniform", "gaussian"), reproduced.data, tmp_path, choice, 20, "cpu")
    settings = replace(settings, runs={bundle.folder: reproduced.run(BRANCH)})
    (group,) = evaluate([bundle.folder], [], settings).groups
    found = {group.rows("confidence_preprocessed", name)[0].epsilon for name in ("uniform", "gaussian")}
    assert len(found) == 1
    if choice == "bundle":
        assert found == {bundle.manifest.scores["confidence_preprocessed"].epsilon}


def test_bundles_in_the_wrong_place_and_missing_sets_are_refused(reproduced, tmp_path):
    """Each mistake is told by name, with what to do about it."""
    branch, baseline = reproduced.bundle(BRANCH), reproduced.bundle(BASELINE)
    runs = {branch: reproduced.run(BRANCH), baseline: reproduced.run(BASELINE)}
    identity = json.loads((reproduced.run(BRANCH) / "run.json").read_text())
    identity["recipe"]["data"]["split_seed"] = 1  # of other calibration images, which this bundle was trained on
    other_run = tmp_path / "other-run"
    other_run.mkdir()
    (other_run / "run.json").write_text(json.dumps(identity))

    def settings(*ood):
        return Settings(ood, reproduced.data, tmp_path, runs=runs)

    for bundles, baselines, chosen, message in (
        ([], [baseline], settings("uniform"), "--baseline .*, and no bundle with a branch is. Give both of a pair"),
        (
            [branch],
            [branch],
            settings("uniform"),
            "has a confidence branch; the baseline is the network trained without",
        ),
        ([branch, branch], [baseline], settings("uniform"), "2 bundles with a branch and 1 baselines"),
        ([branch], [], settings("cifar10"), "was trained or calibrated on it"),
        ([branch], [], settings("isun"), "data set 'isun' is not at .*To get it: fetch iSUN.tar.gz"),
        ([branch], [], settings("my_photos"), "--ood my_photos: no such set or folder. Expected one of .*all_images"),
        ([branch], [], settings("uniform", "uniform"), "uniform more than once"),
        ([branch], [], replace(settings("uniform"), runs={branch: other_run}), "has fingerprint .*give --run"),
    ):
        with pytest.raises(DataError, match=message):
            evaluate(bundles, baselines, chosen)


def network(auroc, role="branch"):
    thresholds = Thresholds(0, 0.1, 0, 0.1, None, None)
    row = Measured("confidence", "uniform", {"auroc": auroc}, thresholds, None, 10, 10)
    return MeasuredNetwork("m/1", role, "0", "compact-cifar10", 0, 0.05, 10, (row,))


def test_mean_and_standard_deviation_over_trainings():
    """0.8, 0.9 and 1.0: mean 0.9, standard deviation 0.1 (n − 1); one training has none."""
    group = Group("cifar10", "compact", "0", 10, 10, tuple(network(value) for value in (0.8, 0.9, 1.0)))
    spread = group.spread("confidence", "uniform", "auroc")
    assert (spread.mean, spread.std, spread.n) == (pytest.approx(0.9), pytest.approx(0.1), 3)
    assert Spread.of([0.7]).std is None
    assert group.spread("odin", "uniform", "auroc") is None


def test_the_better_of_a_pair_is_marked():
    """Lower wins for errors, higher for areas; what rounds to the same is not marked."""
    low, high = Spread(0.1, None, 1), Spread(0.2, 0.01, 2)
    assert pair_cell(low, high, lower_is_better=True) == "**10.0** / 20.0 ± 1.0"
    assert pair_cell(low, high, lower_is_better=False) == "10.0 / **20.0 ± 1.0**"
    assert pair_cell(low, Spread(0.1004, None, 1), lower_is_better=False) == "10.0 / 10.0"
    assert pair_cell(None, high, lower_is_better=True) == "– / 20.0 ± 1.0"
