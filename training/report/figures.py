"""Pictures of single scores: histograms, thresholds, ROC, calibration."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from service.model.scores import Floats
from training.evaluation.ood_sets import title_of
from training.metrics.detection import auroc
from training.report.gather import ReportData
from training.report.style import FAINT, IN_DISTRIBUTION, MISTAKE, OOD, RIGHT, SERIES, label, new_figure
from training.report.views import ScoreView

CURVE_POINTS = 400
BINS = 10


def histograms(data: ReportData) -> Figure:
    """The paper's first figure: the distribution of the score for known and for unknown images."""
    figure, axes = new_figure(len(data.highlighted), height=4.4)
    for one, view in zip(axes, data.highlighted, strict=True):
        edges = np.linspace(0, 1, 41)
        for values, colour, name in (
            (view.in_distribution, IN_DISTRIBUTION, f"{title_of(data.dataset)} (known)"),
            (view.all_ood, OOD, "other images (unknown)"),
        ):
            shares = np.histogram(view.shown(values), edges)[0] / len(values)
            one.stairs(shares, edges, fill=True, color=colour, alpha=0.45)
            one.stairs(shares, edges, color=colour, linewidth=1.4, label=name)
        _mark_thresholds(one, view)
        one.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        label(one, view.title.capitalize(), "score as shown", "share of images")
    return figure


def detection_errors(data: ReportData) -> Figure:
    """The paper's threshold figure: detection error against δ for true OOD and for misclassified images."""
    figure, axes = new_figure(len(data.highlighted), height=4.4, share_y=True)
    for one, view in zip(axes, data.highlighted, strict=True):
        curves = [(view.in_distribution, view.all_ood, OOD, "known against unknown")]
        if view.right is not None and view.right.any() and not view.right.all():
            curves.append(
                (
                    view.in_distribution[view.right],
                    view.in_distribution[~view.right],
                    MISTAKE,
                    "right against wrong answers",
                )
            )
        for accept, refuse, colour, name in curves:
            deltas, errors = error_curve(view, accept, refuse)
            one.plot(deltas, errors, color=colour, linewidth=1.8, label=name)
        _mark_thresholds(one, view)
        one.set_ylim(0, 0.55)
        one.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        label(one, view.title.capitalize(), "threshold δ as shown", "detection error")
    return figure


def error_curve(view: ScoreView, accept: Floats, refuse: Floats) -> tuple[Floats, Floats]:
    """½·P_accept(s ≤ δ) + ½·P_refuse(s > δ) at δ evenly spaced on the scale that is shown."""
    inside, outside = np.sort(view.shown(accept)), np.sort(view.shown(refuse))
    deltas = np.linspace(0, 1, CURVE_POINTS)
    missed = np.searchsorted(inside, deltas, side="right") / len(inside)
    passed = 1 - np.searchsorted(outside, deltas, side="right") / len(outside)
    return deltas, 0.5 * missed + 0.5 * passed


def roc_curves(data: ReportData) -> Figure:
    """For each set: the share of known images that pass against the share of unknown ones."""
    figure, axes = new_figure(len(data.highlighted), height=4.4, share_y=True)
    for one, view in zip(axes, data.highlighted, strict=True):
        for (name, ood), colour in zip(view.ood.items(), _colours(), strict=False):
            slipped, passed = roc(view.in_distribution, ood)
            area = auroc(view.in_distribution, ood)
            one.plot(slipped, passed, color=colour, linewidth=1.6, label=f"{title_of(name)}  {area:.1%}")
        one.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=":")
        one.axhline(0.95, color=FAINT, linewidth=0.8, linestyle="--")
        for axis in (one.xaxis, one.yaxis):
            axis.set_major_formatter(PercentFormatter(1, decimals=0))
        label(one, view.title.capitalize(), "unknown images that slip through", "known images that pass", legend=False)
        one.legend(frameon=False, fontsize=8, loc="lower right", title="AUROC", title_fontsize=8)
    return figure


def roc(accept: Floats, refuse: Floats) -> tuple[Floats, Floats]:
    """False and true positive rate at thresholds between observed scores, thinned to what a picture can show."""
    deltas = np.unique(
        np.concatenate([np.quantile(both, np.linspace(0, 1, CURVE_POINTS)) for both in (accept, refuse)])
    )
    passed = 1 - np.searchsorted(np.sort(accept), deltas, side="right") / len(accept)
    slipped = 1 - np.searchsorted(np.sort(refuse), deltas, side="right") / len(refuse)
    return np.concatenate([[1.0], slipped]), np.concatenate([[1.0], passed])


def calibration_diagram(data: ReportData) -> Figure:
    """The share of correct answers, against the promised probability."""
    figure, axes = new_figure(2 if "confidence" in data.scores else 1, height=4.2)
    right = data.right
    promised = [("Largest probability", data.probabilities.max(axis=1), IN_DISTRIBUTION)]
    if "confidence" in data.scores:
        view = data.scores["confidence"]
        promised.append(("Learned confidence c", view.shown(view.in_distribution), RIGHT))
    for one, (title, values, colour) in zip(axes, promised, strict=True):
        centres, accuracy, counts = binned(values, right)
        one.bar(centres, accuracy, width=0.9 / BINS, color=colour, alpha=0.35, edgecolor=colour)
        for x, y, n in zip(centres, accuracy, counts, strict=True):
            one.text(x, y + 0.015, f"{n:,}", ha="center", fontsize=7, color=FAINT)
        one.plot([0, 1], [0, 1], color=FAINT, linestyle="--", linewidth=1, label="promise kept")
        one.set_xlim(0, 1)
        one.set_ylim(0, 1.08)
        one.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        label(one, title, "what was promised", "answers that were right", legend=False)
        one.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def binned(promised: Floats, right: NDArray[np.bool_]) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Non-empty bins of equal width: centre, share of correct answers, number of images."""
    place = np.clip(np.ceil(promised * BINS).astype(int) - 1, 0, BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    used = counts > 0
    accuracy = np.bincount(place, weights=right, minlength=BINS)[used] / counts[used]
    return ((np.arange(BINS) + 0.5) / BINS)[used], accuracy, counts[used]


def _mark_thresholds(axes: Axes, view: ScoreView) -> None:
    marks = [] if view.ood_threshold is None else [(view.ood_threshold, "δ from other images", OOD, "--")]
    if view.misclassified_threshold is not None:
        marks.append((view.misclassified_threshold, "δ from own mistakes", MISTAKE, "-."))
    for threshold, name, colour, dashes in marks:
        where = float(view.shown(np.asarray(threshold)))
        axes.axvline(where, color=colour, linewidth=1.3, linestyle=dashes, label=f"{name}: {where:.2f}")


def _colours() -> tuple[str, ...]:
    return SERIES * 3  # with more sets than colours, colours repeat
