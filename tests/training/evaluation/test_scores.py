"""Scores of images under a bundle: what the graphs say, whatever the bundle's age."""

from pathlib import Path

import numpy as np

from service.model.bundle import load_bundle
from service.model.scores import log_odds_of_max, log_sum_exp
from service.model.session import open_session
from tests.conftest import SIDE, make_bundle
from tests.pair_bundles import make_pair_bundle
from training.evaluation.outputs import BundleOutputs, ImageSet
from training.evaluation.scores import NetworkScores

IMAGES = np.random.default_rng(0).integers(0, 256, (7, SIDE, SIDE, 3), dtype=np.uint8)


def scores_under(folder: Path, preprocessed: bool = True, **options) -> NetworkScores:
    bundle = load_bundle(make_bundle(folder / "models", **options).folder)
    return NetworkScores(BundleOutputs(bundle, folder / "scores", "cpu"), preprocessed)


def scored(scores: NetworkScores, images: np.ndarray) -> dict[str, np.ndarray]:
    return {name: scores.of(name, [ImageSet("images", images)], scores.stored_epsilon(name)) for name in scores.names}


def test_scores_are_those_of_the_service(tmp_path):
    """Each score is computed from what the service's own session returns for the same images."""
    scores = scores_under(tmp_path, all_scores=True)
    bundle = scores.outputs.bundle
    outputs = open_session(bundle, "perturbed", "cpu").run(IMAGES)
    assert scores.names == (
        *("confidence", "max_softmax", "energy", "max_logit", "typicality", "confidence_preprocessed"),
    )
    for name, values in scored(scores, IMAGES).items():
        assert values.dtype == np.float64
        np.testing.assert_allclose(values, bundle.manifest.scores[name].of_images(name, outputs), rtol=1e-5)
    images = ImageSet("images", IMAGES)
    logits = scores.outputs.clean(images)["logits"]
    np.testing.assert_allclose(logits, outputs["logits"], rtol=1e-5)
    assert scores.right(images, logits.argmax(axis=1)).all()


def test_an_older_bundle_has_the_newer_scores_too(tmp_path):
    """Energy and max_logit need no calibration; typicality does, so it is not offered."""
    scores = scores_under(tmp_path, confidence=False)
    assert scores.names == ("max_softmax", "energy", "max_logit", "odin")
    found = scored(scores, IMAGES)
    logits = scores.outputs.clean(ImageSet("images", IMAGES))["logits"]
    assert found["energy"].tolist() == log_sum_exp(logits).tolist()
    assert found["max_softmax"].tolist() == log_odds_of_max(logits).tolist()


def test_a_bundle_that_asks_two_questions_has_its_own_scores(tmp_path):
    """Neighbours and certainty are there as the service computes them, and the pair ranks images between 0 and 1."""
    bundle = load_bundle(make_pair_bundle(tmp_path / "models").folder)
    scores = NetworkScores(BundleOutputs(bundle, tmp_path / "scores", "cpu"))
    assert {"neighbours", "typicality", "certainty"} <= set(scores.names)
    assert scores.has_pair
    assert not scores_under(tmp_path / "older").has_pair
    images = ImageSet("images", IMAGES)
    outputs = open_session(bundle, "forward", "cpu").run(IMAGES)
    for name in ("neighbours", "certainty"):
        expected = bundle.manifest.scores[name].of_images(name, outputs)
        np.testing.assert_allclose(scores.of(name, [images], None), expected, rtol=1e-5)
    certainty = scores.of("certainty", [images], None)
    rank = [(certainty <= value).mean() for value in certainty]
    familiarity = bundle.manifest.scores["typicality"].shown(scores.of("typicality", [images], None))
    np.testing.assert_allclose(scores.of_pair([images], images), np.minimum(familiarity, rank))


def test_images_of_another_size_are_resized_as_served(tmp_path):
    """Flat images have the same scores at any size."""
    scores = scores_under(tmp_path, perturbed=False)
    flat = np.broadcast_to(np.uint8([200, 30, 90]), (2, 20, 31, 3)).copy()
    small = np.broadcast_to(np.uint8([200, 30, 90]), (2, SIDE, SIDE, 3)).copy()
    expected = scored(scores, small)
    for name, values in scored(scores, flat).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-6)


def test_preprocessed_scores_can_be_left_out(tmp_path):
    """They are the ones that need the perturbed graph."""
    assert "odin" not in scores_under(tmp_path / "plain", preprocessed=False, confidence=False).names
    assert "confidence_preprocessed" not in scores_under(tmp_path / "branch", preprocessed=False).names
