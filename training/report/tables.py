"""The tables of a report, as HTML: every score side by side, and the gate on every OOD set."""

from html import escape

import numpy as np

from training.evaluation.ood_sets import title_of
from training.metrics.detection import auroc, fpr_at_tpr
from training.metrics.mixed_traffic import OOD_SHARE
from training.metrics.selective import aurc
from training.report.gather import ReportData
from training.report.risk_figures import view_augrc
from training.report.views import ScoreView

AUGRC = 4  # its column, which is not per cent


def scores_table(data: ReportData) -> str:
    """Every score on all OOD images together and on the model's own mistakes, measured on test images."""
    rows, columns = [], [_figures(data, view) for view in data.rankings]
    tops = [max(column) for column in zip(*columns, strict=True)]
    for view, values in zip(data.rankings, columns, strict=True):
        shown = ["–" if np.isnan(value) else f"{abs(value):.1%}" for value in values]
        shown[AUGRC:] = (f"{-1000 * value:.1f}" for value in values[AUGRC:])
        cells = "".join(
            f"<td{' class=top' if value == top else ''}>{text}</td>"
            for text, value, top in zip(shown, values, tops, strict=True)
        )
        mark = " class=mark" if _tags(data, view) else ""
        rows.append(f"<tr{mark}><td>{escape(view.title)}{_tags(data, view)}</td>{cells}</tr>")
    asked = "The columns ask: does the score tell known images from unknown ones? Bold is the best."
    headings = ""
    if data.labels is not None:
        asked = (
            "The first two columns ask: does the score tell known images from unknown ones? The next two ask: does it "
            "tell right answers from wrong ones? The last asks both at once, on traffic with "
            f"{100 * OOD_SHARE:g} % unknown images, where an accepted one is a wrong answer. Bold is the best."
        )
        headings = "<th>AUROC, own mistakes ↑<th>area under risk–coverage ↓<th>AUGRC × 1000 ↓"
    return (
        f"<section><h2>Every score, side by side</h2><p>{asked}</p>"
        "<table><tr><th>score<th>AUROC, unknown images ↑<th>unknown images that pass when 95 % of known ones do ↓"
        + headings
        + "</tr>"
        + "".join(rows)
        + "</table></section>"
    )


def _figures(data: ReportData, view: ScoreView) -> tuple[float, ...]:
    """Higher is better; without labels of the test images only those of OOD images."""
    ood = (auroc(view.in_distribution, view.all_ood), -fpr_at_tpr(view.in_distribution, view.all_ood))
    if data.labels is None:
        return ood
    right = data.right
    wrong = view.in_distribution[~right]
    mistakes = auroc(view.in_distribution[right], wrong) if len(wrong) and right.any() else float("nan")
    return (*ood, mistakes, -aurc(view.in_distribution, right), -view_augrc(view, right))


def _tags(data: ReportData, view: ScoreView) -> str:
    gate = data.default if data.default_pair is None else data.default_pair.ranking
    tags = "<span class=tag>default</span>" if view is gate else ""
    return tags + ("<span class='tag best'>best on calibration images</span>" if view is data.best else "")


def sets_table(data: ReportData) -> str:
    view = data.default
    heads = "".join(f"<th>AUROC, {escape(v.title)} ↑<th>95 % TPR: slip through ↓" for v in data.highlighted)
    rows = []
    for name, values in view.ood.items():
        cells = "".join(
            f"<td>{auroc(v.in_distribution, v.ood[name]):.1%}<td>{fpr_at_tpr(v.in_distribution, v.ood[name]):.1%}"
            for v in data.highlighted
        )
        refused = f"<td>{1 - data.accepted_of(name).mean():.1%}"
        if data.default_pair is not None:
            refused += "".join(f"<td>{part.mean():.1%}" for part in data.default_pair.ood_refusals(name))
        rows.append(f"<tr><td>{escape(title_of(name))} (n = {len(values):,}){refused}{cells}</tr>")
    reasons = "" if data.default_pair is None else "<th>as unfamiliar<th>as unsure"
    return (
        "<section><h2>Set by set</h2><p>Images this model was never meant for. What the gate as it ships refuses of "
        "them, and how well they can be told apart at all.</p><table><tr><th>OOD images"
        f"<th>refused ↑{reasons}{heads}</tr>{''.join(rows)}</table></section>"
    )
