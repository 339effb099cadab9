"""The grid of confidence maps: a row for each budget, a column for each noise level, with the training points."""

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from training.paper.xor import TrainedStack, square_grid

REACH = 1.5  # of the maps; a few displaced points lie outside
SIDE = 161
# As in the paper, red for low confidence and blue for high; without the darkest ends, where points would vanish.
COLOURS = ListedColormap(colormaps["RdYlBu"](np.linspace(0.1, 0.86, 256)))
INK, QUIET = "#22262b", "#6b7280"
CLASS_COLOURS = ("#ffffff", INK)
LOWEST_PERCENT = 1

Array = NDArray[np.float32]


def draw_grid(stack: TrainedStack, path: Path) -> None:
    """Writes one PNG; the stack must hold one network for each pair of budget and noise."""
    budgets = sorted({setting.budget for setting in stack.settings})
    noises = sorted({setting.noise for setting in stack.settings})
    _, confidence = stack.outputs(square_grid(SIDE, REACH))
    maps = confidence.reshape(-1, SIDE, SIDE).numpy()
    size = (2.1 * len(noises) + 1.2, 2.1 * len(budgets) + 1.6)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(hspace=0.015, wspace=0.03))
    axes = figure.subplots(len(budgets), len(noises), squeeze=False)
    for k, setting in enumerate(stack.settings):
        row, column = budgets.index(setting.budget), noises.index(setting.noise)
        _draw_map(axes[row, column], maps[k], stack.points[k].numpy(), stack.labels[k].numpy())
        if row == 0:
            axes[row, column].set_title(f"noise {setting.noise * 100:.0f} %", fontsize=11, color=INK)
        if column == 0:
            axes[row, column].set_ylabel(f"β = {setting.budget:.1f}", fontsize=11, color=INK)
    bar = figure.colorbar(axes[0, 0].images[0], ax=axes, shrink=0.4, aspect=30, pad=0.02, ticks=[0, 0.25, 0.5, 0.75, 1])
    bar.set_label("confidence c", color=INK)
    bar.outline.set_visible(False)
    figure.suptitle("Confidence learned on XOR: low where the classes mix", fontsize=14, color=INK)
    legend = figure.legend(
        handles=_class_handles(),
        loc="outside lower center",
        ncols=2,
        frameon=False,
        labelcolor=INK,
        title=f"Below each map: the value that c exceeds on {100 - LOWEST_PERCENT} % of it",
        title_fontsize=9,
    )
    legend.get_title().set_color(QUIET)
    figure.savefig(path, dpi=160)


def _draw_map(axis: Axes, confidence: Array, points: Array, labels: NDArray[np.int64]) -> None:
    area = (-REACH, REACH, -REACH, REACH)
    axis.imshow(confidence, origin="lower", extent=area, cmap=COLOURS, vmin=0, vmax=1, interpolation="bicubic")
    for label, colour in enumerate(CLASS_COLOURS):
        chosen = points[labels == label]
        axis.scatter(chosen[:, 0], chosen[:, 1], s=4.5, c=colour, edgecolors=INK, linewidths=0.3, alpha=0.85)
    axis.set(xticks=[], yticks=[], xlim=area[:2], ylim=area[2:])
    axis.spines[:].set_visible(False)
    lowest = float(np.percentile(confidence, LOWEST_PERCENT))
    axis.set_xlabel(f"{lowest:.2f}", fontsize=9, labelpad=2, color=QUIET)


def _class_handles() -> list[Line2D]:
    return [
        Line2D([], [], marker="o", linestyle="", color=colour, markeredgecolor=INK, label=f"class {label}")
        for label, colour in enumerate(CLASS_COLOURS)
    ]
