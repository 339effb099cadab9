"""One style for all pictures: in-distribution is blue, OOD is orange, mistakes are violet."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

IN_DISTRIBUTION, OOD, MISTAKE, RIGHT = "#2563a8", "#e07b39", "#7a4fa3", "#2e8b6f"
INK, FAINT, GRID = "#22303c", "#6b7a87", "#e3e8ec"
# For several sets or scores in one picture; readable for the colour-blind, darkest first.
SERIES = ("#2563a8", "#e07b39", "#2e8b6f", "#7a4fa3", "#c0392b", "#b8860b", "#17a2b8", "#8c564b", "#6b7a87")
DPI = 150


def new_figure(
    columns: int = 1, height: float = 3.9, width: float | None = None, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with its axes in a row, in the report's style."""
    figure = Figure(figsize=(width or 5.6 * columns, height), layout="constrained", facecolor="white")
    axes = figure.subplots(1, columns, squeeze=False, sharey=share_y)[0]
    for one in axes:
        plain(one)
    return figure, list(axes)


def plain(axes: Axes) -> None:
    """No frame, faint grid, dark text."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, labelsize=9)
    axes.xaxis.label.set(color=INK, fontsize=10)
    axes.yaxis.label.set(color=INK, fontsize=10)
    axes.title.set(color=INK, fontsize=11, fontweight="bold")


def label(axes: Axes, title: str, x: str, y: str, legend: bool = True) -> None:
    """Title, axis labels and legend."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if legend:  # below the picture: within it, it would cover a curve
        axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
