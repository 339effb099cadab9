"""Scores of images under a bundle: what the graphs say, whatever the bundle's age."""

from pathlib import Path

import numpy as np
import pytest

from service.model.bundle import load_bundle
from service.model.scores import log_odds_of_max, log_sum_exp
from service.model.session import open_session
from tests.conftest import SIDE, make_bundle
from training.errors import DataError
from training.evaluation.scores import needs_perturbed_graph, score_bundle, score_with_logits, scores_of

IMAGES = np.random.default_rng(0).integers(0, 256, (7, SIDE, SIDE, 3), dtype=np.uint8)


def bundle_of(folder: Path, **options):
    return load_bundle(make_bundle(folder / "models", **options).folder)


def test_scores_are_those_of_the_service(tmp_path):
    """Each score is computed from what the service's own session returns for the same images."""
    bundle = bundle_of(tmp_path, all_scores=True)
    scored = score_with_logits(bundle, IMAGES)
    outputs = open_session(bundle, "perturbed", "cpu").run(IMAGES)
    assert list(scored.scores) == [
        *("confidence", "max_softmax", "energy", "max_logit", "typicality", "confidence_preprocessed"),
    ]
    for name, values in scored.scores.items():
        assert values.dtype == np.float64
        np.testing.assert_allclose(values, bundle.manifest.scores[name].of_images(name, outputs), rtol=1e-5)
    np.testing.assert_allclose(scored.logits, outputs["logits"], rtol=1e-5)
    assert scored.right(scored.logits.argmax(axis=1)).all()


def test_an_older_bundle_has_the_newer_scores_too(tmp_path):
    """Energy and max_logit need no calibration; typicality does, and the error says how to get it."""
    bundle = bundle_of(tmp_path, confidence=False)
    assert scores_of(bundle) == ("max_softmax", "energy", "max_logit", "odin")
    scores = score_bundle(bundle, IMAGES, ["energy", "max_softmax"])
    logits = score_with_logits(bundle, IMAGES, ["energy"]).logits
    assert scores["energy"].tolist() == log_sum_exp(logits).tolist()
    assert scores["max_softmax"].tolist() == log_odds_of_max(logits).tolist()
    for name, message in (("typicality", "confgate-train calibrate"), ("confidence", "another kind of network")):
        with pytest.raises(DataError, match=message):
            score_bundle(bundle, IMAGES, [name])
    with pytest.raises(DataError, match="'entropy' is unknown"):
        score_bundle(bundle, IMAGES, ["entropy"])


def test_images_of_another_size_are_resized_as_served(tmp_path):
    """Flat images have the same scores at any size; only preprocessed scores need the perturbed graph."""
    bundle = bundle_of(tmp_path, perturbed=False)
    flat = np.broadcast_to(np.uint8([200, 30, 90]), (2, 20, 31, 3)).copy()
    small = np.broadcast_to(np.uint8([200, 30, 90]), (2, SIDE, SIDE, 3)).copy()
    for name, values in score_bundle(bundle, flat).items():
        np.testing.assert_allclose(values, score_bundle(bundle, small)[name], rtol=1e-6)
        assert not needs_perturbed_graph(name)
    assert needs_perturbed_graph("odin")
    assert needs_perturbed_graph("confidence_preprocessed")
