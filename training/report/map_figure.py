"""The map of familiarity and certainty: where a gate that asks two questions draws its two lines, and who is behind."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from service.model.scores import Floats, sigmoid
from training.calibration.pair_policies import PairScores, refusals
from training.evaluation.in_distribution import spread_indices
from training.evaluation.ood_sets import title_of
from training.report.gather import ReportData
from training.report.style import IN_DISTRIBUTION, INK, OOD, label, new_figure
from training.report.views import PairView

POINTS = 1_500  # of each kind: more would hide each other
MOST_CERTAIN = 0.9999  # the axis ends here; more certain images stand on the edge
CERTAINTIES = (0.01, 0.1, 0.2, 0.5, 0.9, 0.99, 0.999, MOST_CERTAIN)
FAMILIARITIES = (0.0001, 0.001, 0.01, 0.1, 1.0)


@dataclass(frozen=True)
class Kind:
    """Images of one colour. Shape and darkness differ too: the map must be readable in print and without colours."""

    title: str
    scores: PairScores
    colour: str
    marker: str
    size: float
    alpha: float


def familiarity_certainty_map(data: ReportData) -> Figure:
    """Every test image by both scores as answers show them, and the thresholds of the pair."""
    assert data.pair is not None, "only a bundle with pairs has a map"
    pair = data.pair
    figure, (one,) = new_figure(1, width=8.6, height=7.2)
    kinds = kinds_of(data, pair)
    for kind in kinds:
        chosen = spread_indices(len(kind.scores), POINTS)
        familiarity, certainty = sigmoid(kind.scores.familiarity), _on_axis(sigmoid(kind.scores.certainty))
        one.scatter(
            certainty[chosen],
            familiarity[chosen],
            s=kind.size,
            c=kind.colour,
            marker=kind.marker,
            alpha=kind.alpha,
            linewidths=0.9 if kind.marker == "x" else 0,
            label=f"{kind.title} (n = {len(kind.scores):,}): {refused_text(pair, kind.scores)}",
        )
    _scales(one, kinds)
    _thresholds(one, pair)
    label(
        one,
        f"Two questions, policy {pair.policy}",
        "certainty: the largest probability",
        "familiarity: a p-value",
        legend=False,
    )
    handles = one.legend(
        frameon=False, fontsize=9, labelcolor=INK, loc="upper center", bbox_to_anchor=(0.5, -0.09), markerscale=1.8
    )
    for handle in handles.legend_handles:
        if handle is not None:
            handle.set_alpha(1)
    return figure


def kinds_of(data: ReportData, pair: PairView) -> tuple[Kind, ...]:
    """In the order in which they are drawn: the few mistakes on top."""
    right, sets = data.default.right, ", ".join(title_of(name) for name in pair.ood)
    kinds = [Kind(f"OOD: {sets}" if len(sets) < 40 else f"OOD, {len(pair.ood)} sets", pair.all_ood, OOD, "^", 16, 0.55)]
    if right is None:
        return (*kinds, Kind("own", pair.own, IN_DISTRIBUTION, "o", 9.0, 0.45))
    for rows, title, look in (
        (right, "own, correctly classified", (IN_DISTRIBUTION, "o", 9.0, 0.45)),
        (~right, "own, misclassified", ("#000000", "x", 26.0, 0.9)),
    ):
        if rows.any():
            kinds.append(Kind(title, pair.own.take(np.flatnonzero(rows)), *look))
    return tuple(kinds)


def refused_text(pair: PairView, scores: PairScores) -> str:
    """The shares refused, by reason."""
    refused = refusals(pair.pair, scores)
    return f"{refused.unfamiliar.mean():.1%} unfamiliar, {refused.unsure.mean():.1%} unsure"


def _on_axis(certainty: Floats) -> Floats:
    return np.minimum(certainty, MOST_CERTAIN)


def _scales(axes: Axes, kinds: tuple[Kind, ...]) -> None:
    """Log for familiarity, log-odds for certainty: most images gather at the ends, where the thresholds lie."""
    lowest = min(float(sigmoid(kind.scores.familiarity).min()) for kind in kinds)
    least = min(float(sigmoid(kind.scores.certainty).min()) for kind in kinds)
    axes.set_yscale("log")
    axes.set_xscale("logit")
    axes.set_ylim(lowest / 1.6, 1.3)
    axes.set_xlim(min(0.9 * least, 0.3), 1 - (1 - MOST_CERTAIN) / 1.6)
    for axis, ticks in ((axes.xaxis, CERTAINTIES), (axes.yaxis, FAMILIARITIES)):
        axis.set_major_locator(FixedLocator([*ticks]))
        axis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"≥ {x:g}" if x == MOST_CERTAIN else f"{x:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))


def _thresholds(axes: Axes, pair: PairView) -> None:
    """A line for each threshold that refuses something, and what becomes of the images on each side."""
    right = axes.get_xlim()[1]
    bottom, top = axes.get_ylim()
    floor = bottom
    if pair.pair.familiarity is not None:
        floor = float(sigmoid(pair.pair.familiarity))
        axes.axhline(floor, color=INK, linewidth=1.6, zorder=4)
        _write(axes, f"refused: unfamiliar\nfamiliarity ≤ {floor:.4f}", (right, floor), (-8, -32))
    if pair.pair.certainty is not None:
        where = float(sigmoid(pair.pair.certainty))
        share = (np.log(floor / bottom)) / np.log(top / bottom)
        axes.axvline(where, ymin=float(share), color=INK, linewidth=1.6, linestyle="--", zorder=4)
        _write(axes, f"refused:\nunsure\n≤ {where:.4f}", (where, top), (-8, -44))
    # The certain ones that are hardly familiar are few: the text hides the fewest images there.
    _write(axes, "accepted", (right, floor), (-8, 10))


def _write(axes: Axes, text: str, at: tuple[float, float], offset: tuple[int, int]) -> None:
    """Text at the left of a point of the map, so many printer's points away from it."""
    axes.annotate(
        text,
        at,
        offset,
        textcoords="offset points",
        ha="right",
        zorder=5,
        fontsize=10,
        fontweight="bold",
        color=INK,
        bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5},
    )
