"""`confgate-train report`: one page that needs nothing else, and curves that say what the metrics say."""

import re

import numpy as np
import pytest

from service.model.scores import sigmoid
from tests.training.command_line import confgate_train
from tests.training.conftest import LIMIT
from training.metrics.detection import auroc, detection_error
from training.report.figures import binned, error_curve, roc
from training.report.gather import ScoreView, gather

BRANCH = "compact-cifar10"
PICTURES = {"histograms", "detection-error", "roc", "risk-coverage", "calibration", "own-samples", "other-samples"}


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


def test_the_figures_at_the_top_are_those_of_the_gate(folder, reproduced):
    """Accuracy, refused and accepted on test images, by the bundle's own threshold."""
    data = gather(
        *(reproduced.bundle(BRANCH), ["uniform", "places_resize"], reproduced.data, folder),
        **{"limit": LIMIT, "device": "cpu", "run": reproduced.run(BRANCH)},
    )
    page = (folder / "index.html").read_text()
    view, policy = data.scores["confidence"], data.manifest.scores["confidence"].policies["misclassified"]
    kept = view.in_distribution > policy.threshold
    for figure in (view.right.mean(), 1 - kept.mean(), np.mean(view.all_ood <= policy.threshold)):
        assert f"<b>{figure:.1%}</b>" in page
    assert "default</span>" in page
    assert "best on calibration images</span>" in page
    assert data.best.name in page


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
