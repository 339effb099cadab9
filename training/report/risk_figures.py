"""How wrong the accepted answers are, against how many are accepted: on own images alone, and on mixed traffic."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from training.metrics.mixed_traffic import OOD_SHARE, RiskCoverage, mixed_augrc, risk_coverage, wrong_among_accepted
from training.report.gather import ReportData
from training.report.style import FAINT, INK, SERIES, label, new_figure
from training.report.views import ScoreView

FEWEST = 20  # the first few answers are noise
DASHES = ("-", "--", "-.", ":")


def own_risk_coverage(data: ReportData) -> Figure:
    """On in-distribution test images alone, where every answer is right or wrong."""
    figure, (one,) = new_figure(1, width=7.4, height=4.4)
    for place, view in enumerate(data.rankings):
        curve = _own_curve(view, data.right)
        _draw(one, data, place, view, curve, view.title)
    accepted = data.accepted
    if accepted.any():
        _mark_gate(one, float(accepted.mean()), float((~data.right[accepted]).mean()))
    _finish(one, "Wrong answers against answers given", "share of images answered", "")
    return figure


def mixed_risk_coverage(data: ReportData) -> Figure:
    """On traffic with OOD images among it: an accepted one counts as wrong."""
    figure, (one,) = new_figure(1, width=7.4, height=4.8)
    for place, view in enumerate(data.rankings):
        curve = risk_coverage(view.in_distribution, data.right, view.all_ood)
        _draw(one, data, place, view, curve, f"{view.title}  {1000 * view_augrc(view, data.right):.1f}")
    wrong = wrong_among_accepted(data.accepted, data.right, data.accepted_ood)
    if wrong is not None:
        answered = (1 - OOD_SHARE) * data.accepted.mean() + OOD_SHARE * data.accepted_ood.mean()
        _mark_gate(one, float(answered), wrong)
    title = f"Wrong answers among those given, with {100 * OOD_SHARE:g} % OOD images"
    _finish(one, title, "share of the traffic answered", "AUGRC × 1000")
    return figure


def view_augrc(view: ScoreView, right: NDArray[np.bool_]) -> float:
    """AUGRC of a score on mixed traffic, all OOD images together."""
    return mixed_augrc(view.in_distribution, right, view.all_ood)


def _own_curve(view: ScoreView, right: NDArray[np.bool_]) -> RiskCoverage:
    order = np.argsort(-view.in_distribution, kind="stable")
    answered = np.arange(1, len(order) + 1)
    return RiskCoverage(answered / len(order), np.cumsum(~right[order]) / answered)


def _draw(axes: Axes, data: ReportData, place: int, view: ScoreView, curve: RiskCoverage, name: str) -> None:
    keep = curve.coverage >= max(FEWEST / len(view.in_distribution), 0.01)
    gate = _is_of_the_gate(data, view)
    axes.plot(
        curve.coverage[keep],
        curve.risk[keep],
        color=INK if gate else SERIES[place % len(SERIES)],
        linestyle="-" if gate else DASHES[place % len(DASHES)],
        linewidth=2.6 if gate else 1.3,
        zorder=3 if gate else 2,
        label=name,
    )


def _is_of_the_gate(data: ReportData, view: ScoreView) -> bool:
    pair = data.default_pair
    return view is data.default if pair is None else view is pair.ranking


def _mark_gate(axes: Axes, answered: float, wrong: float) -> None:
    axes.plot(answered, wrong, "o", color=INK, markersize=8, zorder=4)
    axes.annotate(
        "the gate as it ships",
        (answered, wrong),
        xytext=(10, -14),
        textcoords="offset points",
        ha="left",
        fontsize=9,
        color=FAINT,
    )


def _finish(axes: Axes, title: str, x: str, legend_title: str) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=None))
    axes.set_ylim(bottom=0)
    label(axes, title, x, "wrong among the answered", legend=False)
    axes.legend(frameon=False, fontsize=9, loc="upper left", title=legend_title or None, title_fontsize=9)
