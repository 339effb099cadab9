"""Strips of sample images: those with the highest and the lowest scores."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from training.data.splits import Images
from training.evaluation.ood_sets import title_of
from training.report.gather import ReportData
from training.report.style import FAINT, INK, MISTAKE, OOD, RIGHT

ACROSS = 10


def own_samples(data: ReportData) -> Figure:
    """In-distribution test images: the ten of highest and the ten of lowest score, with answer and truth."""
    view = data.default
    order = np.argsort(view.in_distribution, kind="stable")
    rows = [("most trusted", order[::-1][:ACROSS]), ("least trusted", order[:ACROSS])]
    answers = data.probabilities.argmax(axis=1)
    names = data.manifest.labels

    def caption(index: int) -> tuple[str, str]:
        answer, truth = names[answers[index]], names[data.labels[index]]
        said = answer if answer == truth else f"{answer}\nis {truth}"
        return said, RIGHT if answer == truth else MISTAKE

    shown = view.shown(view.in_distribution)
    return _strips(
        [(title, data.test_images[chosen], [(*caption(i), shown[i]) for i in chosen]) for title, chosen in rows]
    )


def other_samples(data: ReportData) -> Figure:
    """For each OOD set: the images of highest score, which the gate is most likely to miss."""
    view = data.default
    strips = []
    for name, values in view.ood.items():
        chosen = np.argsort(-values, kind="stable")[:ACROSS]
        shown = view.shown(values)
        captions = [
            (
                data.manifest.labels[data.ood_answers[name][i]],
                OOD if values[i] > data.default_threshold else FAINT,
                shown[i],
            )
            for i in chosen
        ]
        strips.append((title_of(name), data.ood_images[name][chosen], captions))
    return _strips(strips)


Caption = tuple[str, str, float]


def _strips(strips: list[tuple[str, Images, list[Caption]]]) -> Figure:
    """Rows of images with a title at the left and a caption below each."""
    figure = Figure(figsize=(11.2, 1.62 * len(strips)), facecolor="white", layout="constrained")
    grid = figure.subplots(len(strips), ACROSS + 1, squeeze=False, width_ratios=[1.35, *[1] * ACROSS])
    for row, (title, images, captions) in zip(grid, strips, strict=True):
        row[0].text(0, 0.5, title.replace(" (", "\n("), fontsize=10, fontweight="bold", color=INK, va="center")
        for axes in row:
            axes.axis("off")
        for axes, image, (text, colour, score) in zip(row[1:], _square(images), captions, strict=False):
            axes.imshow(image, interpolation="nearest")
            axes.set_title(f"{text}\n{score:.3f}", fontsize=7.5, color=colour, pad=3)
    return figure


def _square(images: Images) -> list[NDArray[np.uint8]]:
    return [np.asarray(image) for image in images]
