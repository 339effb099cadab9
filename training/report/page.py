"""The report as one self-contained HTML file: pictures are embedded, and there are no scripts and no external links."""

import base64
from html import escape
from pathlib import Path

import numpy as np

from service.model.scores import sigmoid
from training.bundles.recorded_images import is_imported
from training.evaluation.ood_sets import title_of
from training.report.gather import ReportData
from training.report.sections import sections_of, words
from training.report.tables import scores_table, sets_table

NO_LABELS = (
    "The test images have no labels. What tells them from OOD images needs none; accuracy, and whatever else counts "
    "wrong answers, is left out."
)
STYLE = (Path(__file__).parent / "page.css").read_text()


def page(data: ReportData, pictures: dict[str, bytes], command: str) -> str:
    """The whole page; `pictures` are PNG files by name."""
    manifest = data.manifest
    name = f"{manifest.name} version {manifest.version}"
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(name)}: report</title><style>{STYLE}</style><main>",
        f"<h1>{escape(name)}</h1><p class=sub>How well this model knows what it does not know. "
        f"{escape(_model(data))}, {len(manifest.labels)} classes; every figure is measured on test images "
        f"({escape(title_of(data.dataset))}) by the exported graph.</p>",
    ]
    if data.limit is not None:
        parts.append(
            f"<p class=warn><b>A quick look, not a result:</b> at most {data.limit:,} images of each set were used.</p>"
        )
    if data.labels is None:
        parts.append(f"<p class=warn>{NO_LABELS}</p>")
    parts += [f"<p class=note>{escape(note)}</p>" for note in data.notes]
    parts += [_cards(data), _summary(data), scores_table(data), sets_table(data)]
    parts += [_section(data, pictures, *text) for text in sections_of(data, pictures)]
    parts += [words(), f"<p class=note>Made by <code>{escape(command)}</code></p></main></html>"]
    return "\n".join(parts)


def _model(data: ReportData) -> str:
    """What it is and where it comes from."""
    made = data.manifest.provenance
    if is_imported(data.manifest):
        return f"An ONNX classifier, imported from {made.recipe.partition(' ')[2]}"
    trained_on = made.data.partition(", splits ")[0]
    return f"Network {data.network}, trained on {title_of(trained_on)}"


def _cards(data: ReportData) -> str:
    kept, accepted_ood = data.accepted, data.accepted_ood
    sets = "1 set" if len(data.default.ood) == 1 else f"{len(data.default.ood)} sets"
    cards = [
        (f"{1 - kept.mean():.1%}", f"of its own kind of images are refused by the gate (n = {len(kept):,})"),
        (
            f"{1 - accepted_ood.mean():.1%}",
            f"of OOD images are refused (n = {len(accepted_ood):,}, {sets})",
        ),
    ]
    if data.labels is not None:
        right = data.right
        accepted = f"{right[kept].mean():.1%}" if kept.any() else "–"
        cards.insert(
            0, (f"{right.mean():.1%}", f"of answers are right when everything is answered (n = {len(right):,})")
        )
        cards.insert(2, (accepted, f"of the answers that pass the gate are right (n = {int(kept.sum()):,})"))
    return (
        "<div class=cards>"
        + "".join(f"<div><b>{b}</b><span>{escape(t).replace('n = ', 'n&nbsp;=&nbsp;')}</span></div>" for b, t in cards)
        + "</div>"
    )


def _summary(data: ReportData) -> str:
    default, best = data.default, data.best
    usual, chosen = data.manifest.gated_score, data.best_for["ood"]
    text = [_one_question(data) if data.default_pair is None else _two_questions(data)]
    if best is default:
        text.append(
            f"On calibration images no other score separates known from unknown images better than "
            f"{escape(default.title)}, beyond what chance explains."
        )
    else:
        text.append(
            f"On calibration images <b>{escape(best.title)}</b> (<code>{best.name}</code>) separates known from "
            f"unknown images better: AUROC {chosen.auroc[chosen.score]:.1%} against {chosen.auroc[usual]:.1%} of "
            f"<code>{usual}</code> (n = {chosen.n[0]:,} and {chosen.n[1]:,}). Pictures show both. The default stays "
            f"what it is unless you ask for the other one: <code>?score={best.name}</code> where the bundle "
            f"has thresholds for it, or <code>confgate-train calibrate</code>."
        )
    if "mistakes" in data.best_for:
        own = data.best_for["mistakes"]
        text.append(
            f"To catch the model's own mistakes the choice on calibration images is <code>{own.score}</code> "
            f"(AUROC {own.auroc[own.score]:.1%}; <code>{usual}</code> has {own.auroc[usual]:.1%})."
        )
    return "<section><h2>In short</h2>" + "".join(f"<p>{line}</p>" for line in text) + "</section>"


def _one_question(data: ReportData) -> str:
    default = data.default
    return (
        f"The gate looks at one number for each image, the <b>score</b>. This model ships with the score "
        f"<b>{escape(default.title)}</b> (<code>{default.name}</code>), and refuses an image whose score is at or "
        f"below the threshold δ = {float(default.shown(np.asarray(data.default_threshold))):.3f} "
        f"(policy <code>{escape(data.manifest.default.policy)}</code>)."
    )


def _two_questions(data: ReportData) -> str:
    """What the gate asks, and what it refuses of the model's own images for each reason."""
    pair = data.default_pair
    assert pair is not None
    familiarity, certainty = (
        f"{name} may be anything: nothing is refused as <b>{reason}</b>"
        if threshold is None
        else f"{name} must be above {float(sigmoid(threshold)):.4f}, else the image is refused as <b>{reason}</b>"
        for name, threshold, reason in (
            ("<b>Familiarity</b>", pair.pair.familiarity, "unfamiliar"),
            ("<b>Certainty</b>", pair.pair.certainty, "unsure"),
        )
    )
    refused = pair.own_refusals
    return (
        f"The gate asks two questions about each image. Is it like the images the model gets right? {familiarity}. "
        f"Is the model sure of its answer? {certainty} (policy <code>{escape(pair.policy)}</code>). Of the model's "
        f"own kind of images it refuses {refused.unfamiliar.mean():.1%} as unfamiliar and {refused.unsure.mean():.1%} "
        f"as unsure."
    )


def _section(data: ReportData, pictures: dict[str, bytes], picture: str, heading: str, words: str) -> str:
    narrow = (len(data.highlighted) == 1 and picture in ("histograms", "detection-error", "roc")) or picture in (
        "risk-coverage",
        "mixed-risk-coverage",
        "map",
    )
    encoded = base64.b64encode(pictures[picture]).decode()
    return (
        f"<section><h2>{escape(heading)}</h2><p>{escape(words)}</p>"
        f"<img{' class=narrow' if narrow else ''} alt='{escape(heading)}' "
        f"src='data:image/png;base64,{encoded}'></section>"
    )
