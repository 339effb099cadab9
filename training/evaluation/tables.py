"""An evaluation as tables: the paper's layout, every score side by side, and the thresholds.

A table is headings and rows of text; `**x**` marks the better value, in Markdown and on the terminal.
"""

import re
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from service.model.scores import sigmoid
from training.evaluation.evaluate import Evaluation, Group, Spread
from training.evaluation.measure import METHODS, PAPER_PAIRS, Measured, Method
from training.evaluation.ood_sets import MeasuredSet, title_of
from training.metrics.detection import METRICS
from training.metrics.intervals import LEVEL, RESAMPLES, SEED
from training.metrics.mixed_traffic import MIXED_AUGRC, OOD_SHARE

METRIC_TITLES = {
    "fpr_at_95_tpr": "FPR (95 % TPR) ↓",
    "detection_error": "detection error ↓",
    "auroc": "AUROC ↑",
    "aupr_in": "AUPR-In ↑",
    "aupr_out": "AUPR-Out ↑",
    MIXED_AUGRC: f"AUGRC × 1000 with {100 * OOD_SHARE:g} % OOD images ↓",
}
LOWER_IS_BETTER = frozenset({"fpr_at_95_tpr", "detection_error", MIXED_AUGRC})
SIDE_BY_SIDE = ("auroc", "fpr_at_95_tpr", MIXED_AUGRC)
SHOWN_TIMES = {MIXED_AUGRC: 1000}  # as its authors show it; all others are shown in per cent
WHAT_AUGRC_IS = (
    f"AUGRC is measured on mixed traffic: {100 * (1 - OOD_SHARE):g} % test images and {100 * OOD_SHARE:g} % OOD "
    "images, of which an accepted one counts as a wrong answer. It is the share of the traffic that is accepted and "
    "wrong, mean over every coverage, × 1000."
)
COLUMNS = 7  # what a terminal has room for
PAIRS = tuple(method.key for method in METHODS if method.score is None)
TITLE_OF_METHOD = {method.key: method.title for method in METHODS}
HOW_EPSILON = {
    "per-set": "ε of each preprocessed score has the least detection error on the calibration images of that set, as "
    "in the paper",
    "per-model": "one ε for each network: the least detection error on the calibration images of all sets together",
    "bundle": "ε is the one each bundle holds, which is the one that is served",
}


@dataclass(frozen=True)
class TextTable:
    """A table of text, for Markdown or for a terminal."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", _line(self.headings), "|" + "---|" * len(self.headings)]
        return "\n".join([*lines, *map(_line, self.rows), ""])

    def rich(self) -> Table:
        """For a terminal; a table of many columns is turned, so that each method has a row."""
        turned = COLUMNS < len(self.headings) > len(self.rows) + 1
        headings, *rows = zip(self.headings, *self.rows, strict=True) if turned else (self.headings, *self.rows)
        table = Table(title=escape(self.title), title_justify="left")
        for number, heading in enumerate(headings):
            table.add_column(escape(heading), overflow="fold", no_wrap=number == 0)
        for row in rows:
            table.add_row(*(re.sub(r"\*\*(.+?)\*\*", r"[bold]\1[/bold]", escape(cell)) for cell in row))
        return table


def tables_of(evaluation: Evaluation) -> list[TextTable]:
    """All tables of all groups, in reading order."""
    tables = []
    for group in evaluation.groups:
        where = f"{title_of(group.inside)}, {group.network}"
        for left, right in PAPER_PAIRS:
            if group.rows(left, evaluation.outside[0].name) or group.rows(right, evaluation.outside[0].name):
                tables.append(_paper_table(where, group, evaluation.outside, left, right))
        tables += [side_by_side(where, group, evaluation.outside, m, group.methods) for m in metrics_of(group)]
        tables.append(threshold_table(where, group, evaluation.outside))
    return tables


def metrics_of(group: Group) -> tuple[str, ...]:
    """The metrics that are shown side by side for every score; AUGRC only where it was measured."""
    return tuple(metric for metric in SIDE_BY_SIDE if group.has(metric))


def notes_of(evaluation: Evaluation) -> list[str]:
    """What a reader must know to understand the figures."""
    notes = []
    if evaluation.limit is not None:
        notes.append(
            f"A QUICK LOOK, not a result: at most {evaluation.limit:,} images of each set were used (--limit)."
        )
    measured = any(group.has(MIXED_AUGRC) for group in evaluation.groups)
    notes.append(
        f"All values{' but AUGRC' if measured else ''} are per cent, measured on the exported graphs run by ONNX "
        "Runtime, on test images only."
    )
    if measured:
        notes.append(WHAT_AUGRC_IS)
    if any(group.rows(key, one.name) for group in evaluation.groups for key in PAIRS for one in evaluation.outside):
        notes.append(
            "Familiarity and certainty together rank an image by the lower of its familiarity and of the rank of its "
            "certainty among the calibration images."
        )
    if evaluation.epsilon is not None:
        notes.append(HOW_EPSILON[evaluation.epsilon] + ".")
    if evaluation.has_intervals:
        notes.append(
            f"In brackets, or network by network in evaluation.json: the {100 * LEVEL:g} % bootstrap interval over the "
            f"test images ({RESAMPLES:,} resamplings, seed {SEED}). It does not say where another training would lie."
        )
    for group in evaluation.groups:
        pairs = max(sum(n.role == role for n in group.networks) for role in ("branch", "baseline"))
        spread = f"mean ± standard deviation over {pairs} trainings" if pairs > 1 else "one training, so no spread"
        notes.append(
            f"{title_of(group.inside)}, {group.network}: {group.n_test:,} test and {group.n_calibration:,} calibration "
            f"images; {spread}."
        )
        if not group.labelled:
            notes.append(
                f"{title_of(group.inside)}: the test images have no labels, so accuracy and AUGRC are not measured; "
                f"figures of OOD images need none."
            )
    notes += evaluation.about_images
    for one in evaluation.outside:
        of = f" ({', '.join(one.made_of)})" if len(one.made_of) > 1 else ""
        standing = f"; not the paper's own images: {', '.join(one.stand_ins)}" if one.stand_ins else ""
        notes.append(f"{one.title}: {one.n_test:,} test images{of}{standing}.")
    return notes


def _paper_table(where: str, group: Group, sets: tuple[MeasuredSet, ...], left: str, right: str) -> TextTable:
    """The layout of the paper: one row for each set, `left / right` in each cell, the better one marked."""
    headings = ["set", *(METRIC_TITLES[metric] for metric in METRICS)]
    preprocessed = left == "odin"
    if preprocessed:
        headings.append("ε")
    rows = []
    for one in sets:
        cells = [
            pair_cell(group.spread(left, one.name, m), group.spread(right, one.name, m), m in LOWER_IS_BETTER)
            for m in METRICS
        ]
        if preprocessed:
            cells.append(" / ".join(_epsilons(group.rows(key, one.name)) for key in (left, right)))
        rows.append((one.title, *cells))
    title = f"{where}: {TITLE_OF_METHOD[left]} / {TITLE_OF_METHOD[right]}"
    if not preprocessed:
        errors = [group.classification_error(role) for role in ("baseline", "branch")]
        title += f" (classification error {pair_cell(errors[0], errors[1], True, digits=2)} %)".replace("**", "")
    return TextTable(title, tuple(headings), tuple(rows))


def side_by_side(
    where: str, group: Group, sets: tuple[MeasuredSet, ...], metric: str, methods: tuple[Method, ...]
) -> TextTable:
    """Every score in its own column, the best of each row marked."""
    rows = []
    for one in sets:
        found = [group.spread(method.key, one.name, metric) for method in methods]
        choose, times = min if metric in LOWER_IS_BETTER else max, SHOWN_TIMES.get(metric, 100)
        best = choose((round(times * s.mean, 1) for s in found if s is not None), default=None)
        marked = (
            _marked(s, s is not None and round(times * s.mean, 1) == best, times=times) + _interval_of(s) for s in found
        )
        rows.append((one.title, *marked))
    titles = (method.title for method in methods)
    return TextTable(f"{where}: {METRIC_TITLES[metric]} of every score", ("set", *titles), tuple(rows))


def threshold_table(where: str, group: Group, sets: tuple[MeasuredSet, ...]) -> TextTable:
    """The paper's threshold table, with the thresholds themselves, as the service shows them (sigmoids)."""
    rows = []
    for one in sets:
        for key in PAPER_PAIRS[0]:
            measured = group.rows(key, one.name)
            if measured:
                rows.append((one.title, TITLE_OF_METHOD[key], *_threshold_cells(measured)))
    headings = (
        *("set", "score", "best on test", "calibrated on OOD", "calibrated on misclassified"),
        *("δ best / OOD / misclassified", "δ misclassified > δ OOD"),
    )
    return TextTable(f"{where}: detection error by how the threshold was chosen", headings, tuple(rows))


def _threshold_cells(measured: list[Measured]) -> tuple[str, ...]:
    found = [row.thresholds for row in measured]
    proxies = [t for t in found if t.on_misclassified is not None and t.on_misclassified_error is not None]
    deltas = [Spread.of(map(_shown, (t.best for t in found))), Spread.of(map(_shown, (t.on_ood for t in found)))]
    above = sum(t.on_misclassified > t.on_ood for t in proxies if t.on_misclassified is not None)
    proxy_delta = (
        Spread.of(_shown(t.on_misclassified) for t in proxies if t.on_misclassified is not None) if proxies else None
    )
    proxy = (
        Spread.of(t.on_misclassified_error for t in proxies if t.on_misclassified_error is not None)
        if proxies
        else None
    )
    verdict = (
        "–"
        if not proxies
        else ("yes" if above == len(proxies) else "no" if not above else f"{above} of {len(proxies)}")
    )
    return (
        per_cent(Spread.of(t.best_error for t in found)),
        per_cent(Spread.of(t.on_ood_error for t in found)),
        per_cent(proxy),
        " / ".join("–" if delta is None else f"{delta.mean:.3f}" for delta in (*deltas, proxy_delta)),
        verdict,
    )


def pair_cell(left: Spread | None, right: Spread | None, lower_is_better: bool, digits: int = 1) -> str:
    """`left / right` with the better one marked, as in the paper; equal ones are not marked."""
    if left is None or right is None:
        return f"{per_cent(left, digits)} / {per_cent(right, digits)}"
    a, b = round(100 * left.mean, digits), round(100 * right.mean, digits)
    left_wins, right_wins = (a < b, b < a) if lower_is_better else (a > b, b > a)
    return f"{_marked(left, left_wins, digits)} / {_marked(right, right_wins, digits)}"


def per_cent(spread: Spread | None, digits: int = 1, times: int = 100) -> str:
    """`mean ± std` in per cent, or in another unit by `times`."""
    if spread is None:
        return "–"
    std = "" if spread.std is None else f" ± {times * spread.std:.{digits}f}"
    return f"{times * spread.mean:.{digits}f}{std}"


def _marked(spread: Spread | None, best: bool, digits: int = 1, times: int = 100) -> str:
    text = per_cent(spread, digits, times)
    return f"**{text}**" if best else text


def _interval_of(spread: Spread | None) -> str:
    if spread is None or spread.interval is None:
        return ""
    low, high = spread.interval
    return f" ({100 * low:.1f}–{100 * high:.1f})"


def _shown(threshold: float) -> float:
    return float(sigmoid(threshold))


def _epsilons(rows: list[Measured]) -> str:
    return ", ".join(f"{row.epsilon:g}" for row in rows if row.epsilon is not None) or "–"


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
