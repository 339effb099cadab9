"""The sweep over the budget β: its effect on detection and on the best threshold."""

from typing import Any

from matplotlib.figure import Figure

from service.model.scores import sigmoid
from training.evaluation.evaluate import Group, Spread
from training.evaluation.tables import METRIC_TITLES, TextTable, per_cent
from training.metrics.detection import METRICS
from training.report.style import FAINT, IN_DISTRIBUTION, OOD, label, new_figure

PAPERS_BUDGET, PAPERS_THRESHOLD = 0.3, 0.5  # section 4.2.3: β = 0.3 puts the best δ around 0.5


def budget_records(groups: dict[float, Group], ood: str) -> list[dict[str, Any]]:
    """One row for each budget: shares as fractions, thresholds as the service shows them."""
    records = []
    for budget, group in groups.items():
        measured = group.rows("confidence", ood)
        record: dict[str, Any] = {"budget": budget, "trainings": len(measured), "measured_on": ood}
        columns = {"classification_error": group.classification_error("branch")}
        columns |= {metric: group.spread("confidence", ood, metric) for metric in METRICS}
        columns["best_threshold"] = Spread.of(float(sigmoid(row.thresholds.best)) for row in measured)
        chosen = [t for t in (row.thresholds.on_misclassified for row in measured) if t is not None]
        columns["misclassified_threshold"] = Spread.of(float(sigmoid(t)) for t in chosen) if chosen else None
        for name, spread in columns.items():
            record[name] = None if spread is None else round(spread.mean, 6)
            record[f"{name}_std"] = None if spread is None or spread.std is None else round(spread.std, 6)
        records.append(record)
    return records


def budget_table(records: list[dict[str, Any]]) -> TextTable:
    """β against classification error, detection on All Images and where the best threshold lies."""

    def spread(record: dict[str, Any], name: str) -> Spread | None:
        mean = record[name]
        return None if mean is None else Spread(mean, record[f"{name}_std"], record["trainings"])

    rows = tuple(
        (
            f"{record['budget']:g}",
            per_cent(spread(record, "classification_error"), 2),
            *(per_cent(spread(record, metric)) for metric in METRICS),
            *("–" if record[name] is None else f"{record[name]:.3f}" for name in _THRESHOLDS),
        )
        for record in records
    )
    headings = ("β", "classification error ↓", *(METRIC_TITLES[metric] for metric in METRICS), *_THRESHOLDS.values())
    return TextTable("confidence on All Images for budgets β", headings, rows)


def budget_figure(records: list[dict[str, Any]]) -> Figure:
    """AUROC against β, and the best threshold against β with the paper's aim."""
    figure, (left, right) = new_figure(2)
    budgets = [record["budget"] for record in records]
    for axes, names, colours in (
        (left, {"auroc": "AUROC, All Images"}, (IN_DISTRIBUTION,)),
        (right, _THRESHOLDS, (OOD, IN_DISTRIBUTION)),
    ):
        for (name, title), colour in zip(names.items(), colours, strict=True):
            values = [float("nan") if record[name] is None else record[name] for record in records]
            stds = [record[f"{name}_std"] or 0.0 for record in records]
            axes.errorbar(budgets, values, stds, color=colour, marker="o", markersize=4, capsize=2, label=title)
    right.plot(PAPERS_BUDGET, PAPERS_THRESHOLD, "x", color=FAINT, markersize=9, label="the paper's aim")
    low, high = left.get_ylim()
    middle = (low + high) / 2
    left.set_ylim(min(low, middle - 0.05), max(high, middle + 0.05))  # noise must not look like a trend
    right.set_ylim(0, 1)
    label(left, "Detection", "budget β", "AUROC")
    label(right, "Thresholds as shown", "budget β", "δ")
    return figure


_THRESHOLDS = {"best_threshold": "best δ", "misclassified_threshold": "δ misclassified"}
