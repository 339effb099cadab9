"""The choice of ε: the value of the grid with the least detection error on calibration images."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from service.model.scores import Floats, ScoreName, score_images
from training.graphs.image_views import AnyImages, ChosenImages, batches_of
from training.graphs.images_at_once import MOST_PERTURBED
from training.graphs.perturbed import ODIN_TEMPERATURE
from training.graphs.perturbed_images import PerturbedImages
from training.graphs.progress import images_done, pass_begins
from training.metrics.detection import detection_error

# In units of the normalised image, whose standard deviation is 1. Zero is in the grid: preprocessing may not help.
EPSILONS = (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016)
# At most so many in-distribution images. Neighbouring ε differ by a tenth of a point of detection error: with 1,000
# images, each of which is a twentieth of a point, the choice would be chance.
EPSILON_IMAGES = 5_000
# Each image takes the time of ten forward passes: with 5,000 photos an import would take an hour. The size of the
# images alone says how many it may be, so that the same images give the same ε on every machine.
EPSILON_PIXELS = EPSILON_IMAGES * 32 * 32
FEWEST_EPSILON_IMAGES = 500


def epsilon_images(images: AnyImages) -> int:
    """How many images of this size ε is chosen on, at most: 5,000 of 32×32 pixels, 500 of 224×224."""
    height, width = images.shape[1:3]
    return min(EPSILON_IMAGES, max(FEWEST_EPSILON_IMAGES, EPSILON_PIXELS // (height * width)))


def note_few(images: AnyImages, notes: dict[str, None]) -> None:
    """Says that ε is not chosen on all of these images, if that is because they are large."""
    most, (height, width) = epsilon_images(images), images.shape[1:3]
    if most < min(len(images), EPSILON_IMAGES):
        notes[
            f"ε was chosen on {most:,} of {len(images):,} calibration images: at {width}×{height} pixels, more would "
            "take too long."
        ] = None


def choose_epsilon(
    perturbed: PerturbedImages,
    score: ScoreName,
    images: AnyImages,
    right: NDArray[np.bool_],
    batch: int = MOST_PERTURBED,
) -> float:
    """The ε of least detection error between correctly classified and misclassified images; needs no OOD images.

    It is chosen on at most `epsilon_images`, of which at most half are misclassified.
    """
    if right.all() or not right.any():
        return EPSILONS[0]  # there is nothing to tell apart
    most = epsilon_images(images)
    wrong = np.flatnonzero(~right)[: most // 2]
    chosen = np.concatenate([np.flatnonzero(right)[: most - len(wrong)], wrong])
    found = _at_each_epsilon(perturbed, score, ChosenImages(images, chosen), batch)
    return least_error([values[right[chosen]] for values in found], [values[~right[chosen]] for values in found])


def choose_epsilon_ood(
    perturbed: PerturbedImages,
    score: ScoreName,
    images: AnyImages,
    ood: Sequence[AnyImages],
    batch: int = MOST_PERTURBED,
) -> float:
    """The ε of least detection error between in-distribution images and held-out OOD images, as in the paper.

    It is chosen on the first `epsilon_images` of `images` and of each set of `ood`.
    """
    most = epsilon_images(images)
    own, *others = (
        _at_each_epsilon(perturbed, score, ChosenImages(part, np.arange(min(len(part), most))), batch)
        for part in (images, *ood)
    )
    return least_error(
        own,
        [np.concatenate(of_epsilon) for of_epsilon in zip(*others, strict=True)],
    )


def _at_each_epsilon(perturbed: PerturbedImages, score: ScoreName, images: AnyImages, batch: int) -> list[Floats]:
    """The preprocessed score of every image, once for each ε of the grid."""
    parts = []
    pass_begins("choosing ε", len(images))
    for pixels in batches_of(images, batch):
        parts.append([score_images(score, outputs, ODIN_TEMPERATURE) for outputs in perturbed.run(pixels, EPSILONS)])
        images_done(len(pixels))
    return [np.concatenate(of_epsilon) for of_epsilon in zip(*parts, strict=True)]


def least_error(accept: Iterable[Floats], refuse: Iterable[Floats]) -> float:
    """The ε of least detection error; the smallest of several equally good ones.

    `accept` and `refuse` hold the scores of the same images for each ε of the grid.
    """
    errors = [detection_error(a, r).detection_error for a, r in zip(accept, refuse, strict=True)]
    return EPSILONS[int(np.argmin(errors))]
