"""Strips of sample images: those with the highest and the lowest scores."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from service.model.scores import sigmoid
from training.data.splits import Images
from training.evaluation.ood_sets import title_of
from training.report.gather import ReportData
from training.report.style import FAINT, INK, MISTAKE, OOD, RIGHT

ACROSS = 10
Caption = tuple[str, str]  # text and its colour


def own_samples(data: ReportData) -> Figure:
    """In-distribution test images: the ten of highest and the ten of lowest score, with answer and truth."""
    view = data.default
    order = np.argsort(view.in_distribution, kind="stable")
    scores = [f"{value:.3f}" for value in view.shown(view.in_distribution)]
    return _own_strips(data, [("most trusted", order[::-1][:ACROSS]), ("least trusted", order[:ACROSS])], scores)


def least_samples(data: ReportData) -> Figure:
    """In-distribution test images of a gate that asks two questions: the least familiar and the least certain."""
    assert data.pair is not None, "only a bundle with pairs has both scores"
    own = data.pair.own
    # Many images may share the lowest p-value: among those, the less certain come first.
    rows = [
        ("least familiar", np.lexsort((own.certainty, own.familiarity))[:ACROSS]),
        ("least certain", np.argsort(own.certainty, kind="stable")[:ACROSS]),
    ]
    return _own_strips(data, rows, _both(own.familiarity, own.certainty))


def other_samples(data: ReportData) -> Figure:
    """For each OOD set: the images of highest score, which the gate is most likely to miss."""
    pair, strips = data.default_pair, []
    view = data.default if pair is None else pair.ranking
    for name, values in view.ood.items():
        chosen = np.argsort(-values, kind="stable")[:ACROSS]
        accepted = data.accepted_of(name)
        if pair is None:
            scores = [f"{value:.3f}" for value in view.shown(values)]
        else:
            scores = _both(pair.ood[name].familiarity, pair.ood[name].certainty)
        captions = [
            (f"{data.manifest.labels[data.ood_answers[name][i]]}\n{scores[i]}", OOD if accepted[i] else FAINT)
            for i in chosen
        ]
        strips.append((title_of(name), data.ood_images[name][chosen], captions))
    return _strips(strips)


def _both(familiarity: NDArray[np.float64], certainty: NDArray[np.float64]) -> list[str]:
    pairs = zip(sigmoid(familiarity), sigmoid(certainty), strict=True)
    return [f"fam. {p:.4f}\ncert. {sure:.4f}" for p, sure in pairs]


def _own_strips(data: ReportData, rows: list[tuple[str, NDArray[np.int64]]], scores: list[str]) -> Figure:
    answers, names = data.probabilities.argmax(axis=1), data.manifest.labels

    def caption(index: int) -> Caption:
        answer = names[answers[index]]
        if data.labels is None:
            return f"{answer}\n{scores[index]}", INK
        truth = names[data.labels[index]]
        said = answer if answer == truth else f"{answer}, is {truth}"
        return f"{said}\n{scores[index]}", RIGHT if answer == truth else MISTAKE

    return _strips([(title, data.test_images[chosen], [caption(i) for i in chosen]) for title, chosen in rows])


def _strips(strips: list[tuple[str, Images, list[Caption]]]) -> Figure:
    """Rows of images with a title at the left and a caption above each."""
    lines = max(text.count("\n") for _, _, captions in strips for text, _ in captions) + 1
    figure = Figure(figsize=(11.2, (1.1 + 0.16 * lines) * len(strips)), facecolor="white", layout="constrained")
    grid = figure.subplots(len(strips), ACROSS + 1, squeeze=False, width_ratios=[1.35, *[1] * ACROSS])
    for row, (title, images, captions) in zip(grid, strips, strict=True):
        row[0].text(0, 0.5, title.replace(" (", "\n("), fontsize=10, fontweight="bold", color=INK, va="center")
        for axes in row:
            axes.axis("off")
        for axes, image, (text, colour) in zip(row[1:], images, captions, strict=False):
            axes.imshow(np.asarray(image), interpolation="nearest")
            axes.set_title(text, fontsize=7.5, color=colour, pad=3)
    return figure
