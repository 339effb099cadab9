"""All pictures of a report, by name, in the order of the page."""

from collections.abc import Callable

from matplotlib.figure import Figure

from training.report.figures import calibration_diagram, detection_errors, histograms, roc_curves
from training.report.gather import ReportData
from training.report.map_figure import familiarity_certainty_map
from training.report.risk_figures import mixed_risk_coverage, own_risk_coverage
from training.report.samples import least_samples, other_samples, own_samples

Draw = Callable[[ReportData], Figure]

MAP, LEAST, OWN = "map", "least-samples", "own-samples"
NEED_LABELS = frozenset({"mixed-risk-coverage", "risk-coverage", "calibration"})


def pictures_of(data: ReportData) -> dict[str, Draw]:
    """Those that the bundle allows: a gate that asks two questions has a map, and samples for both.

    Without labels of the test images those that count wrong answers are left out.
    """
    pair = data.pair is not None
    pictures: dict[str, Draw] = {MAP: familiarity_certainty_map} if pair else {}
    pictures |= {
        "mixed-risk-coverage": mixed_risk_coverage,
        "histograms": histograms,
        "detection-error": detection_errors,
        "roc": roc_curves,
        "risk-coverage": own_risk_coverage,
        "calibration": calibration_diagram,
    }
    if data.labels is None:
        pictures = {name: draw for name, draw in pictures.items() if name not in NEED_LABELS}
    pictures |= {LEAST: least_samples} if pair else {OWN: own_samples}
    return pictures | {"other-samples": other_samples}
