"""The report as one self-contained HTML file: pictures are embedded, and there are no scripts and no external links."""

import base64
from html import escape
from pathlib import Path

import numpy as np

from training.evaluation.ood_sets import title_of
from training.metrics.detection import auroc, fpr_at_tpr
from training.metrics.selective import aurc, expected_calibration_error
from training.report.gather import ReportData, ScoreView

STYLE = (Path(__file__).parent / "page.css").read_text()


def page(data: ReportData, pictures: dict[str, bytes], command: str) -> str:
    """The whole page; `pictures` are PNG files by name."""
    manifest = data.manifest
    name = f"{manifest.name} version {manifest.version}"
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(name)}: report</title><style>{STYLE}</style><main>",
        f"<h1>{escape(name)}</h1><p class=sub>How well this model knows what it does not know. "
        f"A {escape(data.network)} network, trained on {escape(title_of(data.dataset))}, "
        f"{len(manifest.labels)} classes; every figure is measured on test images by the exported graph.</p>",
    ]
    if data.limit is not None:
        parts.append(
            f"<p class=warn><b>A quick look, not a result:</b> at most {data.limit:,} images of each set were used.</p>"
        )
    parts += [_cards(data), _summary(data), _scores_table(data), _sets_table(data)]
    parts += [_section(data, pictures, *text) for text in _sections(data)]
    parts += [_words(), f"<p class=note>Made by <code>{escape(command)}</code></p></main></html>"]
    return "\n".join(parts)


def _cards(data: ReportData) -> str:
    view, threshold = data.default, data.default_threshold
    kept = view.in_distribution > threshold
    accepted = f"{view.right[kept].mean():.1%}" if kept.any() else "–"
    cards = [
        (f"{view.right.mean():.1%}", f"of answers are right when everything is answered (n = {len(view.right):,})"),
        (
            f"{1 - kept.mean():.1%}",
            f"of its own kind of images are refused by the gate (n = {len(kept):,})",
        ),
        (accepted, f"of the answers that pass the gate are right (n = {int(kept.sum()):,})"),
        (
            f"{np.mean(view.all_ood <= threshold):.1%}",
            f"of OOD images are refused (n = {len(view.all_ood):,}, {len(view.ood)} sets)",
        ),
    ]
    return (
        "<div class=cards>"
        + "".join(f"<div><b>{b}</b><span>{escape(t).replace('n = ', 'n&nbsp;=&nbsp;')}</span></div>" for b, t in cards)
        + "</div>"
    )


def _summary(data: ReportData) -> str:
    default, best = data.default, data.best
    chosen = data.best_for["ood"]
    text = [
        f"The gate looks at one number for each image, the <b>score</b>. This model ships with the score "
        f"<b>{escape(default.title)}</b> (<code>{default.name}</code>), and refuses an image whose score is at or "
        f"below the threshold δ = {float(default.shown(np.asarray(data.default_threshold))):.3f} "
        f"(policy <code>{escape(data.manifest.default.policy)}</code>)."
    ]
    if best is default:
        text.append(
            "On calibration images no other score separates known from unknown images better than chance explains."
        )
    else:
        text.append(
            f"On calibration images <b>{escape(best.title)}</b> (<code>{best.name}</code>) separates known from "
            f"unknown images better: AUROC {chosen.auroc[best.name]:.1%} against {chosen.auroc[default.name]:.1%} "
            f"(n = {chosen.n[0]:,} and {chosen.n[1]:,}). Pictures show both. The default stays what it is unless you "
            f"ask for the other one: <code>?score={best.name}</code> where the bundle has thresholds for it, or "
            f"<code>confgate-train calibrate</code>."
        )
    if "mistakes" in data.best_for:
        own = data.best_for["mistakes"]
        text.append(
            f"To catch the model's own mistakes the choice on calibration images is <code>{own.score}</code> "
            f"(AUROC {own.auroc[own.score]:.1%}; the default has {own.auroc[default.name]:.1%})."
        )
    return "<section><h2>In short</h2>" + "".join(f"<p>{line}</p>" for line in text) + "</section>"


def _scores_table(data: ReportData) -> str:
    """Every score on all OOD images together and on the model's own mistakes, measured on test images."""
    rows, columns = [], []
    for view in data.scores.values():
        ood = (auroc(view.in_distribution, view.all_ood), -fpr_at_tpr(view.in_distribution, view.all_ood))
        wrong = view.in_distribution[~view.right]
        mistakes = auroc(view.in_distribution[view.right], wrong) if len(wrong) and view.right.any() else float("nan")
        columns.append((*ood, mistakes, -aurc(view.in_distribution, view.right)))
    tops = [max(column) for column in zip(*columns, strict=True)]
    for view, values in zip(data.scores.values(), columns, strict=True):
        cells = "".join(
            f"<td{' class=top' if value == top else ''}>{'–' if np.isnan(value) else f'{abs(value):.1%}'}</td>"
            for value, top in zip(values, tops, strict=True)
        )
        mark = " class=mark" if view in data.highlighted else ""
        rows.append(f"<tr{mark}><td>{escape(view.title)}{_tags(data, view)}</td>{cells}</tr>")
    return (
        "<section><h2>Every score, side by side</h2><p>The first two columns ask: does the score tell known images "
        "from unknown ones? The last two ask: does it tell right answers from wrong ones? Bold is the best.</p>"
        "<table><tr><th>score<th>AUROC, unknown images ↑<th>unknown images that pass when 95 % of known ones do ↓"
        "<th>AUROC, own mistakes ↑<th>area under risk–coverage ↓</tr>" + "".join(rows) + "</table></section>"
    )


def _tags(data: ReportData, view: ScoreView) -> str:
    tags = "<span class=tag>default</span>" if view is data.default else ""
    return tags + ("<span class='tag best'>best on calibration images</span>" if view is data.best else "")


def _sets_table(data: ReportData) -> str:
    view = data.default
    heads = "".join(f"<th>AUROC, {escape(v.title)} ↑<th>95 % TPR: slip through ↓" for v in data.highlighted)
    rows = []
    for name, values in view.ood.items():
        cells = "".join(
            f"<td>{auroc(v.in_distribution, v.ood[name]):.1%}<td>{fpr_at_tpr(v.in_distribution, v.ood[name]):.1%}"
            for v in data.highlighted
        )
        refused = np.mean(values <= data.default_threshold)
        rows.append(f"<tr><td>{escape(title_of(name))} (n = {len(values):,})<td>{refused:.1%}{cells}</tr>")
    return (
        "<section><h2>Set by set</h2><p>Images this model was never meant for. What the gate as it ships refuses of "
        "them, and how well they can be told apart at all.</p><table><tr><th>OOD images"
        f"<th>refused ↑{heads}</tr>{''.join(rows)}</table></section>"
    )


def _sections(data: ReportData) -> list[tuple[str, str, str]]:
    """Picture, heading, and what to see in it."""
    right = data.default.right
    ece = expected_calibration_error(np.clip(data.probabilities.max(axis=1), 0, 1), right)
    c = data.scores.get("confidence")
    c_ece = (
        ""
        if c is None
        else f" For the learned confidence it is {expected_calibration_error(c.shown(c.in_distribution), right):.1%}."
    )
    return [
        (
            "histograms",
            "Known and unknown images",
            "Each image gets a score between 0 (no trust) and 1 (full trust). The further the blue hill lies from the "
            "orange one, the easier it is to tell them apart. What lies at or left of a dashed line is refused.",
        ),
        (
            "detection-error",
            "Where to put the threshold",
            "The detection error is the mean of two mistakes: known images refused and unknown images let in. Each "
            "curve's lowest point is its best threshold. The orange curve needs OOD images; the violet "
            "one needs only the model's own mistakes. Where its line lies to the right of the orange one, the gate "
            "that was set without such images is the more careful one.",
        ),
        (
            "roc",
            "What must be given up for what",
            "Each point is a threshold: how many known images pass (up is good) and how many unknown ones slip through "
            "(left is good). The dashed line marks 95 % of known images passing.",
        ),
        (
            "risk-coverage",
            "Fewer answers, better answers",
            "From right to left the gate gets stricter and answers fewer images. The lower the curve, the fewer of the "
            "answers given are wrong. The dot is the gate as it ships.",
        ),
        (
            "calibration",
            "Does it keep its promises?",
            f"Of the answers given with 80 % probability, are 80 % right? Bars on the dashed line say yes; numbers are "
            f"images in a bar. The expected calibration error of the probabilities is {ece:.1%}.{c_ece} Confidence is "
            f"trained to rank answers, not to be a probability, so its bars need not be on the line.",
        ),
        (
            "own-samples",
            "Its own images, most and least trusted",
            f"Test images of {title_of(data.dataset)} with the highest and the lowest score, answer and score. "
            f"Green answers are right, violet ones wrong.",
        ),
        (
            "other-samples",
            "The unknown images it trusts most",
            "From each set the images with the highest score, and what the model takes them for. Orange ones pass the "
            "gate as it ships; grey ones are refused.",
        ),
    ]


def _section(data: ReportData, pictures: dict[str, bytes], picture: str, heading: str, words: str) -> str:
    narrow = (
        len(data.highlighted) == 1 and picture in ("histograms", "detection-error", "roc")
    ) or picture == "risk-coverage"
    encoded = base64.b64encode(pictures[picture]).decode()
    return (
        f"<section><h2>{escape(heading)}</h2><p>{escape(words)}</p>"
        f"<img{' class=narrow' if narrow else ''} alt='{escape(heading)}' "
        f"src='data:image/png;base64,{encoded}'></section>"
    )


def _words() -> str:
    entries = {
        "known image": "one of the kind the model was trained on (in-distribution); here from its test set",
        "unknown image": "one of something else (out-of-distribution)",
        "score": "how much the model is to be trusted on an image; higher is better",
        "threshold δ": "an image is refused when its score is at or below it",
        "AUROC": "the chance that a known image scores above an unknown one: 50 % is guessing, 100 % is perfect",
        "FPR at 95 % TPR": "unknown images that slip through when the gate lets 95 % of the known ones pass",
        "coverage, risk": "the share of images answered, and the share of wrong answers among them",
    }
    items = "".join(f"<dt>{escape(term)}<dd>{escape(meaning)}" for term, meaning in entries.items())
    return f"<section><h2>Words</h2><dl>{items}</dl></section>"
