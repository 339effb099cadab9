"""The choice of ε, with and without out-of-distribution images."""

import numpy as np
import pytest

from service.model.scores import score_images
from tests.training.small_network import IMAGES, MEAN, STD, network_with
from training.calibration.epsilon import EPSILONS, choose_epsilon, choose_epsilon_ood, epsilon_images, note_few
from training.graphs.from_torch import export_network
from training.graphs.parity import preprocessed_score
from training.graphs.perturbed import ODIN_TEMPERATURE, perturbed_graph
from training.graphs.perturbed_images import perturbed_images_of
from training.graphs.run import open_graph, run_graph
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


@pytest.mark.parametrize(("side", "most"), [(16, 5_000), (32, 5_000), (64, 1_250), (224, 500), (600, 500)])
def test_epsilon_is_chosen_on_fewer_images_where_they_are_large(side, most):
    """The size of the images alone says how many there are, and a note says if that leaves some out."""
    many = np.broadcast_to(np.uint8(0), (6_000, side, side, 3))
    assert epsilon_images(many) == most
    notes = {}
    note_few(many, notes)
    assert len(notes) == (most < 5_000)
    assert all(f"ε was chosen on {most:,} of 6,000 calibration images" in note for note in notes)
    few = {}
    note_few(many[:most], few)
    assert not few
