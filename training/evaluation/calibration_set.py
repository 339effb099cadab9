"""A bundle's calibration images, scored as its calibration scored them."""

import onnx

from service.model.bundle import Bundle
from training.bundles.bank import own_similarity_of
from training.evaluation.in_distribution import InDistribution
from training.evaluation.outputs import ImageSet
from training.graphs.neighbours import has_neighbours


def calibration_set(bundle: Bundle, in_distribution: InDistribution) -> ImageSet:
    """The images, and how similar those in the bank of neighbours are to the others in it.

    The bank of a bundle that was trained here holds training images alone. That of an imported one holds calibration
    images: each would be its own neighbour.
    """
    name, images = f"{in_distribution.dataset} calibration", in_distribution.calibration
    if in_distribution.calibrated_on_its_split:
        return ImageSet(name, images.images)
    forward = onnx.load(bundle.graph_path("forward"))
    if not has_neighbours(forward):
        return ImageSet(name, images.images)
    return ImageSet(name, images.images, own_similarity_of(forward, bundle.manifest.input, images))
