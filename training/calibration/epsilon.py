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
from training.graphs.work import images_within
from training.metrics.detection import detection_error

# In units of the normalised image, whose standard deviation is 1. Zero is in the grid: preprocessing may not help.
EPSILONS = (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016)
# At most so many in-distribution images. Neighbouring ε differ by a tenth of a point of detection error: with 1,000
# images, each of which is a twentieth of a point, the choice would be chance.
EPSILON_IMAGES = 5_000
# Each image takes the time of ten forward passes: with 5,000 photos an import would take an hour. What the network
# computes for one image says how many it may be; it is counted, so that every machine chooses the same ε.
EPSILON_WORK = 8 * 10**11
FEWEST_EPSILON_IMAGES = 100
FEWEST_OF_EACH = 10  # of right and wrong answers: which ε tells fewer from the others best is chance


def epsilon_images(of_one: int | None) -> int:
    """How many images ε is chosen on, at most, where the network takes `of_one` multiply-adds for each."""
    return images_within(EPSILON_WORK, of_one, FEWEST_EPSILON_IMAGES, EPSILON_IMAGES)


def note_few(images: AnyImages, most: int, notes: dict[str, None]) -> None:
    """Says that ε is not chosen on all of these images, if that is because the network takes long for each."""
    if most < min(len(images), EPSILON_IMAGES):
        notes[
            f"ε was chosen on {most:,} of {len(images):,} calibration images: with this network more would take too "
            "long."
        ] = None


def too_few_to_tell(right: NDArray[np.bool_]) -> str | None:
    """Why no ε can be chosen between right and wrong answers, if so."""
    if right.all() or not right.any():
        which = "no calibration image is misclassified" if right.all() else "every calibration image is misclassified"
        return f"{which}: there is nothing to choose it on"
    for fewer, what in ((int(right.sum()), "classified correctly"), (int((~right).sum()), "misclassified")):
        if fewer < FEWEST_OF_EACH:
            return f"only {fewer} of {len(right)} calibration images are {what}: too few to choose it on"
    return None


def choose_epsilon(
    perturbed: PerturbedImages,
    score: ScoreName,
    images: AnyImages,
    right: NDArray[np.bool_],
    batch: int = MOST_PERTURBED,
    most: int = EPSILON_IMAGES,
) -> float:
    """The ε of least detection error between correctly classified and misclassified images; needs no OOD images.

    It is chosen on at most `most` images, of which at most half are misclassified.
    """
    if right.all() or not right.any():
        return EPSILONS[0]  # there is nothing to tell apart
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
    most: int = EPSILON_IMAGES,
) -> float:
    """The ε of least detection error between in-distribution images and held-out OOD images, as in the paper.

    It is chosen on the first `most` of `images` and of each set of `ood`.
    """
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
