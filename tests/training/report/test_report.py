"""`confgate-train report`: one page that needs nothing else, and curves that say what the metrics say."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from service.model.bundle import Manifest
from service.model.gate import Reading, pairs_of
from service.model.scores import sigmoid
from tests.training.command_line import confgate_train
from tests.training.conftest import LIMIT
from training.metrics.detection import auroc, detection_error
from training.metrics.mixed_traffic import mixed_augrc
from training.report.figures import binned, error_curve, roc
from training.report.gather import gather
from training.report.map_figure import MOST_CERTAIN, familiarity_certainty_map
from training.report.page import page
from training.report.pictures import pictures_of
from training.report.risk_figures import mixed_risk_coverage
from training.report.samples import ACROSS, least_samples
from training.report.views import ScoreView

BRANCH = "compact-cifar10"
ANY_BUNDLE = {
    *("mixed-risk-coverage", "histograms", "detection-error", "roc", "risk-coverage", "calibration", "other-samples"),
}
PICTURES = ANY_BUNDLE | {"map", "least-samples"}


@pytest.fixture(scope="module")
def folder(reproduced, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    confgate_train(
        *("report", reproduced.bundle(BRANCH), "--ood", "uniform", "--ood", "places_resize", "--limit", LIMIT),
        *("--run", reproduced.run(BRANCH), "--data-root", reproduced.data, "--out", out, "--device", "cpu"),
    )
    return out


def test_the_page_needs_nothing_beside_it(folder):
    """Every picture is inside the page and also in the folder; nothing is fetched and nothing is run."""
    page = (folder / "index.html").read_text()
    assert {path.stem for path in folder.glob("*.png")} == PICTURES
    assert page.count("src='data:image/png;base64,") == len(PICTURES) == page.count("<img")
    assert not re.search(r"https?://|<script|<link", page)
    assert "A quick look, not a result" in page


@pytest.fixture(scope="module")
def data(folder, reproduced):
    return gather(
        *(reproduced.bundle(BRANCH), ["uniform", "places_resize"], reproduced.data, folder),
        **{"limit": LIMIT, "device": "cpu", "run": reproduced.run(BRANCH)},
    )


def refused_by(manifest, view):
    """Unfamiliar and unsure, counted image by image with the service's own gate."""
    gate = pairs_of(manifest)[view.policy]

    def counts(scores):
        readings = [
            Reading(0, [1.0], {"typicality": (familiarity, 0.5), "certainty": (certainty, 0.5)})
            for familiarity, certainty in zip(scores.familiarity, scores.certainty, strict=True)
        ]
        reasons = [gate.reason_to_refuse(reading) for reading in readings]
        return np.asarray([reason == "unfamiliar" for reason in reasons]), np.asarray([r == "unsure" for r in reasons])

    return counts(view.own), counts(view.all_ood)


def test_the_figures_at_the_top_are_those_of_the_gate(folder, data):
    """Accuracy, refused and accepted on test images, by both thresholds of the bundle's own gate."""
    page = (folder / "index.html").read_text()
    (unfamiliar, unsure), (foreign, doubted) = refused_by(data.manifest, data.pair)
    right = data.default.right
    kept = ~(unfamiliar | unsure)
    for figure in (right.mean(), 1 - kept.mean(), np.mean(foreign | doubted)):
        assert f"<b>{figure:.1%}</b>" in page
    if kept.any():
        assert f"<b>{right[kept].mean():.1%}</b>" in page
    assert f"refuses {unfamiliar.mean():.1%} as unfamiliar and {unsure.mean():.1%} as unsure" in page
    assert "default</span>" in page
    assert "best on calibration images</span>" in page
    assert data.best.name in page


def test_the_map_has_every_image_in_its_colour_and_the_thresholds(data):
    """Three kinds with their shares by reason, points where answers show them, a line for each threshold."""
    (axes,) = familiarity_certainty_map(data).axes
    kinds = {text.get_text().split(" (")[0].split(":")[0]: text.get_text() for text in axes.get_legend().get_texts()}
    right = data.default.right
    (unfamiliar, unsure), (foreign, doubted) = refused_by(data.manifest, data.pair)
    expected = {
        "OOD": (foreign, doubted),
        "own, correctly classified": (unfamiliar[right], unsure[right]),
        "own, misclassified": (unfamiliar[~right], unsure[~right]),
    }
    assert list(kinds) == list(expected)
    for name, (by_familiarity, by_certainty) in expected.items():
        said = f"(n = {len(by_familiarity)}): {by_familiarity.mean():.1%} unfamiliar, {by_certainty.mean():.1%} unsure"
        assert kinds[name].endswith(said)
    points = {tuple(np.round(point, 9)) for drawn in axes.collections for point in drawn.get_offsets()}
    own = data.pair.own
    shown = np.column_stack([np.minimum(sigmoid(own.certainty), MOST_CERTAIN), sigmoid(own.familiarity)])
    assert {tuple(np.round(point, 9)) for point in shown} <= points
    assert len({tuple(drawn.get_facecolors()[0][:3]) for drawn in axes.collections}) == 3
    pair = data.manifest.pairs.policies["balanced"]
    assert pair.familiarity is not None
    familiarity, *certainty = axes.lines
    assert familiarity.get_ydata()[0] == float(sigmoid(pair.familiarity))
    assert [line.get_xdata()[0] for line in certainty] == [
        float(sigmoid(one)) for one in (pair.certainty,) if one is not None
    ]


def test_curves_on_mixed_traffic_are_those_of_every_score_and_the_pair(data):
    """Each ends at the share that is wrong without a gate; the legend has each AUGRC, and the dot is the gate."""
    (axes,) = mixed_risk_coverage(data).axes
    *curves, dot = axes.lines
    everything = 1 - 0.8 * data.default.right.mean()
    for curve, view in zip(curves, data.rankings, strict=True):
        assert curve.get_xdata()[-1] == pytest.approx(1)
        assert curve.get_ydata()[-1] == pytest.approx(everything)
        area = mixed_augrc(view.in_distribution, view.right, view.all_ood)
        assert curve.get_label() == f"{view.title}  {1000 * area:.1f}"
    assert curves[-1].get_label().startswith("familiarity and certainty together")
    (unfamiliar, unsure), (foreign, doubted) = refused_by(data.manifest, data.pair)
    kept, passed = ~(unfamiliar | unsure), ~(foreign | doubted)
    wrong = 0.8 * np.mean(kept & ~data.default.right) + 0.2 * passed.mean()
    assert dot.get_xdata()[0] == pytest.approx(0.8 * kept.mean() + 0.2 * passed.mean())
    assert dot.get_ydata()[0] == pytest.approx(wrong / dot.get_xdata()[0])


def test_samples_are_the_least_familiar_and_the_least_certain(data):
    """Each with its answer and both scores as answers show them, the lowest first."""
    captions = [axes.get_title() for axes in least_samples(data).axes if axes.get_title()]
    own = data.pair.own
    shown = {"fam.": np.sort(sigmoid(own.familiarity)), "cert.": np.sort(sigmoid(own.certainty))}
    assert len(captions) == 2 * ACROSS
    for row, (name, values) in zip((captions[:ACROSS], captions[ACROSS:]), shown.items(), strict=True):
        assert [caption.partition(f"{name} ")[2][:6] for caption in row] == [f"{v:.4f}" for v in values[:ACROSS]]
        assert all(caption.split(",")[0].split("\n")[0] in data.manifest.labels for caption in row)


def test_a_bundle_that_asks_one_question_has_a_report_without_a_map(data):
    """Such as one of schema_version 1: the same page, with the most and the least trusted images instead."""
    raw = json.loads(data.manifest.to_json())
    raw |= {"schema_version": 1, "default": {"score": "confidence", "policy": "misclassified"}, "evaluation": []}
    del raw["pairs"]
    for newer in ("neighbours", "certainty"):
        raw["scores"].pop(newer, None)
    raw["scores"].pop("typicality")  # it may be made of neighbours
    scores = {name: view for name, view in data.scores.items() if name in raw["scores"]}
    older = replace(
        data,
        manifest=Manifest.model_validate_json(json.dumps(raw)),
        pair=None,
        scores=scores,
        best_for={"ood": replace(data.best_for["ood"], score="confidence")},
    )
    drawn = pictures_of(older)
    assert set(drawn) == ANY_BUNDLE | {"own-samples"}
    text = page(older, dict.fromkeys(drawn, b""), "confgate-train report")
    policy = older.manifest.scores["confidence"].policies["misclassified"]
    refused = np.mean(scores["confidence"].in_distribution <= policy.threshold)
    assert f"<b>{refused:.1%}</b>" in text
    assert "unfamiliar" not in text
    for draw in drawn.values():
        draw(older)


def view_of(inside, outside):
    right = np.ones(len(inside), dtype=bool)
    return ScoreView("confidence", inside, right, {"other": outside}, None, 0.0)


def test_the_threshold_curve_reaches_the_detection_error():
    """Its minimum is the detection error, up to the spacing of its points."""
    random = np.random.default_rng(0)
    inside, outside = random.normal(1, 1, 2000), random.normal(-1, 1, 2000)
    deltas, errors = error_curve(view_of(inside, outside), inside, outside)
    best = detection_error(inside, outside)
    assert errors.min() == pytest.approx(best.detection_error, abs=0.002)
    assert deltas[errors.argmin()] == pytest.approx(float(sigmoid(best.value)), abs=0.05)
    assert errors[0] == errors[-1] == 0.5  # everything passes, nothing passes


def test_the_area_under_the_drawn_roc_is_the_auroc():
    """The thinned curve keeps the area."""
    random = np.random.default_rng(1)
    inside, outside = random.normal(1, 1, 3000), random.normal(0, 2, 1000)
    slipped, passed = roc(inside, outside)
    assert np.trapezoid(passed[::-1], slipped[::-1]) == pytest.approx(auroc(inside, outside), abs=0.002)


def test_bins_of_the_calibration_diagram_by_hand():
    """0.05, 0.1 fall into the first tenth, 0.95 and 1.0 into the last; empty bins are left out."""
    centres, accuracy, counts = binned(
        np.asarray([0.05, 0.1, 0.95, 1.0, 0.0]), np.asarray([True, False, True, True, True])
    )
    np.testing.assert_allclose(centres, [0.05, 0.95])
    np.testing.assert_allclose(accuracy, [2 / 3, 1])
    assert counts.tolist() == [3, 2]
