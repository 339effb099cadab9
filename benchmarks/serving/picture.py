"""Charts of throughput and cost by concurrency (every server) and by batch size (confgate and the limit)."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

Curve = Mapping[int, tuple[float, float]]  # concurrency or batch size → images/s, CPU seconds per 1,000 images
COLOURS = ("#0b6e4f", "#c8553d", "#3d5a98", "#8a6f2c", "#7b4b94", "#555555")
TITLES = ("images/s", "CPU seconds per 1,000 images")


def draw(path: Path, servers: Mapping[str, Curve], request_sizes: Curve, bare: Curve) -> None:
    """Writes the charts as PNG."""
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
    for row, title in enumerate(TITLES):
        by_concurrency, by_batch = axes[row]
        for colour, (name, curve) in zip(COLOURS, servers.items(), strict=False):
            width = 2.4 if name == "confgate" else 1.4
            _plot(by_concurrency, curve, row, name, colour, width)
        limit = max(value[0] for value in bare.values()) if row == 0 else min(value[1] for value in bare.values())
        by_concurrency.axhline(limit, color="black", linestyle=":", linewidth=1, label="ONNX Runtime alone")
        _plot(by_batch, bare, row, "ONNX Runtime alone, by batch size", "black", 1.0, ":")
        if request_sizes:
            _plot(by_batch, request_sizes, row, "confgate, by images in a request", COLOURS[0], 2.4)
        for axis, where in ((by_concurrency, "concurrent requests of one image"), (by_batch, "images")):
            axis.set(xlabel=where, ylabel=title, xscale="log", ylim=(0, None))
            ticks = sorted({int(x) for line in axis.lines for x in line.get_xdata() if x >= 1})
            axis.set_xticks(ticks, [str(tick) for tick in ticks])
            axis.minorticks_off()
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_ylim(0, 1.3 * axis.get_ylim()[1])  # room for the legend above all lines
            axis.legend(frameon=False, fontsize=8, loc="upper right", ncols=2 if axis is by_concurrency else 1)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _plot(axis: Axes, curve: Curve, which: int, label: str, colour: str, width: float, style: str = "-") -> None:
    axis.plot(
        list(curve),
        [value[which] for value in curve.values()],
        style,
        marker="o",
        ms=4,
        lw=width,
        c=colour,
        label=label,
    )
