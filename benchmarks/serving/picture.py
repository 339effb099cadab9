"""Charts of throughput and cost by concurrency, by batch size, and of latency in an open loop."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

Curve = Mapping[int, tuple[float, float]]  # concurrency or batch size → images/s, CPU seconds per 1,000 images
COLOURS = ("#0b6e4f", "#c8553d", "#3d5a98", "#8a6f2c", "#7b4b94", "#555555", "#2a9db5", "#d48fb1")
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


def draw_photos(
    path: Path,
    photos: Sequence[str],
    closed: Mapping[str, Mapping[str, Curve]],
    opened: Mapping[str, Mapping[str, Mapping[int, float]]],
    limit: str,
) -> None:
    """Writes a row of charts for each photo: images/s, CPU seconds, and p99 by the share of a server's capacity."""
    figure, axes = pyplot.subplots(len(photos), 3, figsize=(14, 4.4 * len(photos)), layout="constrained", squeeze=False)
    names = [name for name in dict.fromkeys(name for photo in photos for name in closed[photo]) if name != limit]
    styles = {
        name: (colour, 2.4 if name == "confgate" else 1.4) for name, colour in zip(names, COLOURS * 2, strict=False)
    }
    for photo, row in zip(photos, axes, strict=True):
        for which, axis in enumerate(row[:2]):
            for name, curve in closed[photo].items():
                if name == limit:
                    _plot(axis, curve, which, "the limit: bare processes", "black", 1.0, ":")
                else:
                    _plot(axis, curve, which, name, *styles[name])
            axis.set(xlabel="concurrent requests", ylabel=TITLES[which], xscale="log", title=photo)
        for name, latencies in opened.get(photo, {}).items():
            shown = {share: (p99, 0.0) for share, p99 in latencies.items() if math.isfinite(p99)}
            _plot(row[2], shown, 0, name, *styles[name])
        row[2].set(
            xlabel="arrivals, % of a server's own capacity", ylabel="p99, ms (open loop)", yscale="log", title=photo
        )
        for axis in row:
            ticks = sorted({int(x) for line in axis.lines for x in line.get_xdata()})
            axis.set_xticks(ticks, [str(tick) for tick in ticks])
            axis.minorticks_off()
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
        shown_ms = [y for line in row[2].lines for y in line.get_ydata()] or [1.0]
        low, high = 0.8 * min(shown_ms), 1.25 * max(shown_ms)
        steps = [step * 10**power for power in range(6) for step in (1, 2, 5)]
        row[2].set_yticks(steps, [f"{step:,}" for step in steps])
        row[2].set_ylim(low, high)
        row[2].minorticks_off()
        for axis in row[:2]:
            axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
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
