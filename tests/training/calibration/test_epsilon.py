"""The choice of ε, with and without out-of-distribution images."""

from pathlib import Path

import numpy as np
import pytest

from service.model.scores import score_images
from tests.training.small_network import IMAGES, MEAN, STD, network_with
from training.calibration.epsilon import (
    EPSILONS,
    choose_epsilon,
    choose_epsilon_ood,
    epsilon_images,
    note_few,
    too_few_to_tell,
)
from training.graphs.from_torch import export_network
from training.graphs.parity import preprocessed_score
from training.graphs.perturbed import ODIN_TEMPERATURE, perturbed_graph
from training.graphs.perturbed_images import perturbed_images_of
from training.graphs.run import open_graph, run_graph
from training.graphs.work import work_of_one_image
from training.metrics.detection import detection_error


@pytest.fixture(scope="module")
def images():
    return IMAGES


@pytest.mark.parametrize("branch", [True, False])
def test_chosen_epsilon_has_the_least_detection_error_of_the_grid(branch, images):
    """No ε of the grid separates right from wrong answers better than the chosen one."""
    network = network_with(branch)
    perturbed = perturbed_graph(export_network(network, MEAN, STD, 16))
    session = open_graph(perturbed)
    right = np.random.default_rng(1).random(len(images)) < 0.6
    score = preprocessed_score(network)
    chosen = choose_epsilon(perturbed_images_of(perturbed), score, images, right)
    errors = {}
    for epsilon in EPSILONS:
        values = score_images(score, run_graph(session, images, epsilon=epsilon), ODIN_TEMPERATURE)
        errors[epsilon] = detection_error(values[right], values[~right]).detection_error
    assert errors[chosen] == min(errors.values())


@pytest.mark.parametrize("branch", [True, False])
def test_epsilon_chosen_on_ood_images_has_the_least_detection_error(branch, images):
    """No ε of the grid separates the images from those of two other sets together better than the chosen one."""
    network = network_with(branch)
    perturbed = perturbed_graph(export_network(network, MEAN, STD, 16))
    session = open_graph(perturbed)
    random = np.random.default_rng(1)
    outside = [random.integers(0, high, (20, 16, 16, 3), dtype=np.uint8) for high in (60, 200)]
    score = preprocessed_score(network)
    chosen = choose_epsilon_ood(perturbed_images_of(perturbed), score, images, outside)
    errors = {}
    for epsilon in EPSILONS:
        inside, *others = (
            score_images(score, run_graph(session, part, epsilon=epsilon), ODIN_TEMPERATURE)
            for part in (images, *outside)
        )
        errors[epsilon] = detection_error(inside, np.concatenate(others)).detection_error
    assert errors[chosen] == min(errors.values())


@pytest.mark.parametrize(
    ("of_one", "most"), [(1, 5_000), (16 * 10**7, 5_000), (8 * 10**8, 1_000), (2 * 10**10, 100), (None, 100)]
)
def test_epsilon_is_chosen_on_fewer_images_where_the_network_takes_long(of_one, most):
    """What the network computes for one image says how many there are, and a note says if that leaves some out."""
    assert epsilon_images(of_one) == most
    many = np.broadcast_to(np.uint8(0), (6_000, 8, 8, 3))
    notes = {}
    note_few(many, most, notes)
    assert len(notes) == (most < 5_000)
    assert all(f"ε was chosen on {most:,} of 6,000 calibration images" in note for note in notes)
    few = {}
    note_few(many[:most], most, few)
    assert not few


@pytest.mark.parametrize(
    ("correct", "of", "reason"),
    [
        (50, 50, "no calibration image is misclassified: there is nothing to choose it on"),
        (0, 50, "every calibration image is misclassified: there is nothing to choose it on"),
        (9, 50, "only 9 of 50 calibration images are classified correctly: too few to choose it on"),
        (41, 50, "only 9 of 50 calibration images are misclassified: too few to choose it on"),
        (10, 50, None),
        (40, 50, None),
    ],
)
def test_a_handful_of_right_or_wrong_answers_chooses_no_epsilon(correct, of, reason):
    """With fewer than ten of either it would be chance."""
    assert too_few_to_tell(np.arange(of) < correct) == reason


@pytest.mark.parametrize("name", ["cifar10/1", "cifar10/5", "fashion_mnist/1"])
def test_shipped_networks_choose_epsilon_on_all_that_it_may_be(name):
    """They are small: 5,000 images are a minute's work for them."""
    assert epsilon_images(work_of_one_image(Path("models") / name / "model.onnx")) == 5_000


@pytest.mark.parametrize("by", ["misclassified", "ood"])
def test_epsilon_is_chosen_on_no_more_images_than_it_may_be(by, images):
    """Of each set the graph sees at most so many."""
    perturbed = perturbed_images_of(perturbed_graph(export_network(network_with(False), MEAN, STD, 16)))
    asked = []

    class Counted:
        def run(self, pixels, epsilons):
            asked.append(len(pixels))
            return perturbed.run(pixels, epsilons)

    if by == "ood":
        choose_epsilon_ood(Counted(), "odin", images, [images[::-1]], most=7)
    else:
        right = np.arange(len(images)) % 5 > 0
        choose_epsilon(Counted(), "odin", images, right, most=7)
    assert sum(asked) == (14 if by == "ood" else 7)
