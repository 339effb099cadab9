"""The words of a report: what to see in each picture, and what the terms mean."""

from collections.abc import Collection
from html import escape

import numpy as np

from training.evaluation.ood_sets import title_of
from training.metrics.mixed_traffic import OOD_SHARE
from training.metrics.selective import expected_calibration_error
from training.report.gather import ReportData
from training.report.map_figure import POINTS, kinds_of
from training.report.pictures import LEAST, MAP, OWN


def sections_of(data: ReportData, pictures: Collection[str]) -> list[tuple[str, str, str]]:
    """Picture, heading, and what to see in it, for each picture that was drawn."""
    written = (*_of_both(data), *_of_scores(), *_of_answers(data), *_samples(data))
    return [section for section in written if section[0] in pictures]


def _of_both(data: ReportData) -> list[tuple[str, str, str]]:
    more = f" At most {POINTS:,} images of each kind are drawn, evenly spaced; the shares are of all of them."
    own = "Blue dots are own images that are classified correctly, black crosses are own images that are not"
    if data.labels is None:
        own = "Blue dots are own images"
    thinned = any(len(kind.scores) > POINTS for kind in kinds_of(data, data.pair)) if data.pair is not None else False
    return [
        (
            MAP,
            "The map: familiar, and certain?",
            "Each point is an image: the higher, the more it is like the images that the model gets right; the "
            "further right, the surer the model is of its answer. Both axes are stretched where images gather. What "
            "lies below the solid line is refused as unfamiliar, and what lies left of the dashed one as unsure. "
            f"{own}, and orange triangles are OOD images.{more if thinned else ''}",
        ),
        (
            "mixed-risk-coverage",
            "When one image in five is not its kind",
            f"Traffic of {100 * (1 - OOD_SHARE):g} % own images and {100 * OOD_SHARE:g} % OOD images (all sets "
            "together). An accepted OOD image counts as a wrong answer. From right to left the gate gets stricter; "
            "the lower the curve, the fewer of the answers given are wrong. AUGRC sums a curve up: the share of the "
            "traffic that is accepted and wrong, mean over every coverage; lower is better. The dot is the gate as it "
            "ships.",
        ),
    ]


def _of_scores() -> list[tuple[str, str, str]]:
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
    ]


def _of_answers(data: ReportData) -> list[tuple[str, str, str]]:
    """What counts correct and wrong answers, which only labels tell."""
    if data.labels is None:
        return []
    right = data.right
    ece = expected_calibration_error(np.clip(data.probabilities.max(axis=1), 0, 1), right)
    c = data.scores.get("confidence")
    c_ece = (
        ""
        if c is None
        else f" For the learned confidence it is {expected_calibration_error(c.shown(c.in_distribution), right):.1%}."
    )
    return [
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
    ]


def _samples(data: ReportData) -> list[tuple[str, str, str]]:
    own = f"Test images of {title_of(data.dataset)}"
    truth = "" if data.labels is None else " Green answers are right, violet ones wrong"
    wrong = f"{truth} (with what the image is)." if truth else ""
    return [
        (
            LEAST,
            "Its own images, least familiar and least certain",
            f"{own} with the lowest familiarity and with the lowest certainty: the answer, familiarity and certainty."
            f"{wrong}",
        ),
        (
            OWN,
            "Its own images, most and least trusted",
            f"{own} with the highest and the lowest score, answer and score.{truth and f'{truth}.'}",
        ),
        (
            "other-samples",
            "The unknown images it trusts most",
            "From each set the images that the gate is most likely to accept, and what the model takes them for. "
            "Orange ones pass the gate as it ships; grey ones are refused.",
        ),
    ]


def words() -> str:
    """A small glossary."""
    entries = {
        "known image": "one of the kind the model was trained on (in-distribution); here from its test set",
        "unknown image": "one of something else (out-of-distribution)",
        "score": "how much the model is to be trusted on an image; higher is better",
        "threshold δ": "an image is refused when its score is at or below it",
        "AUROC": "the chance that a known image scores above an unknown one: 50 % is guessing, 100 % is perfect",
        "FPR at 95 % TPR": "unknown images that slip through when the gate lets 95 % of the known ones pass",
        "coverage, risk": "the share of images answered, and the share of wrong answers among them",
        "familiarity": "a p-value: the share of the images the model gets right that look at least as unusual",
        "certainty": "the largest probability, as answers show it",
        "AUGRC": "the share of the traffic that is accepted and wrong, mean over every coverage (Traub et al. 2024)",
    }
    items = "".join(f"<dt>{escape(term)}<dd>{escape(meaning)}" for term, meaning in entries.items())
    return f"<section><h2>Words</h2><dl>{items}</dl></section>"
