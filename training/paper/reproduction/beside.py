"""Our figures beside the published ones: the result of a reproduction."""

from dataclasses import dataclass
from typing import Any

from training.evaluation.evaluate import Evaluation, Group, Spread
from training.evaluation.measure import PAPER_PAIRS
from training.evaluation.ood_sets import title_of
from training.evaluation.tables import (
    LOWER_IS_BETTER,
    METRIC_TITLES,
    TITLE_OF_METHOD,
    TextTable,
    pair_cell,
)
from training.metrics.detection import METRICS
from training.paper.published import published_errors, published_value
from training.paper.reproduction.experiments import BUDGET_SWEEP, COMPACT_BESIDE, Cell, Experiment

THRESHOLD_TITLES = {
    "calibrated_on_ood": "detection error, calibrated on true OOD",
    "calibrated_on_misclassified": "detection error, calibrated on misclassified",
}


@dataclass(frozen=True)
class Compared:
    """One value of the paper and ours; `in_distribution` and `ood` by their published names."""

    network: str
    in_distribution: str
    ood: str
    used: str  # the set it was measured on here
    method: str
    metric: str
    ours: Spread | None
    published: float | None  # per cent


@dataclass(frozen=True)
class Finished:
    """A cell of the experiment with what was measured for it."""

    cell: Cell
    group: Group
    evaluation: Evaluation


def compare(experiment: Experiment, finished: list[Finished], used: dict[str, str]) -> list[Compared]:
    """Every value of the published table, with ours."""
    found = []
    for done in finished:
        cell, group = done.cell, done.group
        for ood in experiment.sets:
            for method in _methods(experiment.table):
                where = (cell.network, cell.in_distribution, ood)
                for metric, ours in _measured(experiment.table, group, method, used[ood]).items():
                    published = published_value(*where, method, metric)
                    found.append(Compared(*where, used[ood], method, metric, ours, published))
        if experiment.table == "1":
            for method in PAPER_PAIRS[0]:
                error = group.classification_error("baseline" if method == "baseline" else "branch")
                known = published_errors().get((cell.network, cell.in_distribution, method))
                found.append(
                    Compared(cell.network, cell.in_distribution, "", "", method, "classification_error", error, known)
                )
    return found


def _methods(table: str) -> tuple[str, str]:
    return PAPER_PAIRS[1] if table == "2" else PAPER_PAIRS[0]


def _measured(table: str, group: Group, method: str, ood: str) -> dict[str, Spread | None]:
    if table != "3":
        return {metric: group.spread(method, ood, metric) for metric in METRICS}
    thresholds = [row.thresholds for row in group.rows(method, ood)]
    proxies = [t.on_misclassified_error for t in thresholds if t.on_misclassified_error is not None]
    return {
        "calibrated_on_ood": Spread.of(t.on_ood_error for t in thresholds),
        "calibrated_on_misclassified": Spread.of(proxies) if proxies else None,
    }


def beside_tables(experiment: Experiment, compared: list[Compared]) -> list[TextTable]:
    """A table for each network: `ours / ours (paper: theirs / theirs)`."""
    tables = []
    for network, in_distribution in dict.fromkeys((c.network, c.in_distribution) for c in compared):
        own = [c for c in compared if (c.network, c.in_distribution) == (network, in_distribution)]
        left, right = _methods(experiment.table)
        ours = "compact" if experiment.scale == "compact" else network
        beside = f" (beside the paper's {network})" if ours != network else ""
        title = f"{title_of(in_distribution)}, {ours}{beside}: {TITLE_OF_METHOD[left]} / {TITLE_OF_METHOD[right]}"
        metrics = [m for m in dict.fromkeys(c.metric for c in own) if m != "classification_error"]
        rows = [
            (
                _set_title(ood, own),
                *(_cell(own, ood, metric, left, right) for metric in metrics),
            )
            for ood in dict.fromkeys(c.ood for c in own if c.ood)
        ]
        if any(c.metric == "classification_error" for c in own):
            error = _cell(own, "", "classification_error", left, right, digits=2).replace("**", "")
            title += f"; classification error {error}"
        headings = ("set", *(METRIC_TITLES.get(m) or THRESHOLD_TITLES[m] for m in metrics))
        tables.append(TextTable(title, headings, tuple(rows)))
    return tables


def _set_title(ood: str, compared: list[Compared]) -> str:
    used = next(c.used for c in compared if c.ood == ood)
    return title_of(ood) if used == ood else f"{title_of(used)} for {title_of(ood)}"


def _cell(own: list[Compared], ood: str, metric: str, left: str, right: str, digits: int = 1) -> str:
    a, b = (next(c for c in own if (c.ood, c.metric, c.method) == (ood, metric, m)) for m in (left, right))
    lower = metric in LOWER_IS_BETTER or metric in THRESHOLD_TITLES or metric == "classification_error"
    published = " / ".join("–" if c.published is None else f"{c.published:.{digits}f}" for c in (a, b))
    return f"{pair_cell(a.ours, b.ours, lower, digits)} (paper: {published})"


def records_of(compared: list[Compared]) -> list[dict[str, Any]]:
    """For table.csv and table.json, in per cent as the paper prints it."""
    return [
        {
            "network": c.network,
            "in_distribution": c.in_distribution,
            "out_of_distribution": c.ood,
            "measured_on": c.used,
            "method": c.method,
            "metric": c.metric,
            "published": c.published,
            "ours": None if c.ours is None else round(100 * c.ours.mean, 2),
            "ours_std": None if c.ours is None or c.ours.std is None else round(100 * c.ours.std, 2),
            "trainings": 0 if c.ours is None else c.ours.n,
        }
        for c in compared
    ]


def notes_for(experiment: Experiment, used: dict[str, str], seeds: int) -> list[str]:
    """Differences from the paper's experiments, which a reader must know."""
    notes = [f"Ours: {seeds} training{'s' if seeds > 1 else ''} of each network; the paper: 5."]
    if experiment.scale == "compact" and experiment.table == BUDGET_SWEEP:
        notes.append("--scale compact: a smaller network and fewer epochs than any in the paper.")
    elif experiment.scale == "compact":
        notes.append(
            f"--scale compact: a smaller network and fewer epochs than any in the paper; the paper's {COMPACT_BESIDE} "
            f"is shown beside it for orientation, not as the same experiment."
        )
    standing = [f"{title_of(here)} for {title_of(name)}" for name, here in used.items() if here != name]
    if standing:
        notes.append(f"Sets that stand in for the paper's: {', '.join(standing)}.")
    notes.append(
        "The paper trains on all training images; here validation and calibration images are held out of them, and "
        "1,000 images of each out-of-distribution set are held out of its test images."
    )
    if experiment.table == BUDGET_SWEEP:
        notes.append(
            "The paper (section 2.3.1 and 4.2.3) says that β between 0.1 and 1.0 changes detection little, and chose "
            "β = 0.3 so that the best δ is near 0.5; it has no table of this."
        )
    return notes
