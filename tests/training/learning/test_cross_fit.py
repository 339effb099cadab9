"""Cross-fitted logits: each row is judged by a layer that saw no view of its image."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from training.learning import cross_fit as module
from training.learning.cross_fit import ABSENT, FOLDS, STRENGTHS, CrossFitted, cross_fit

CLASSES, EACH, WIDTH = 3, 60, 5
Data = tuple[NDArray[np.float16], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]


@pytest.fixture
def data() -> Data:
    """Two views of each image, of which the first is plain; class 2 of four has no image."""
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1, 3], EACH)
    centres = random.normal(0, 1, (4, WIDTH))
    plain = centres[labels] + random.normal(0, 1, (len(labels), WIDTH))
    moved = plain + random.normal(0, 0.2, plain.shape)
    image = np.tile(np.arange(len(labels)), 2)
    features = np.concatenate([plain, moved]).astype(np.float16)
    return features, np.tile(labels, 2), image, np.arange(2 * len(labels)) < len(labels)


def fitted(data: Data) -> CrossFitted:
    return cross_fit(*data, classes=4, seed=3)


def test_logits_are_those_of_scikit_learn_without_the_fold(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """For one strength: the rows of each fold, plain and moved, as its LogisticRegression on the others judges them."""
    strength = 0.01
    monkeypatch.setattr(module, "STRENGTHS", (strength,))
    features, labels, image, is_plain = data
    found = softmax(fitted(data).logits.astype(np.float64), axis=1)
    fold = module._folds(labels, image, is_plain, seed=3)[image]
    assert set(fold) == set(range(FOLDS))
    for number in range(FOLDS):
        own = is_plain & (fold != number)
        reference = LogisticRegression(C=1 / (strength * own.sum()), tol=1e-8, max_iter=1000)
        reference.fit(features[own].astype(np.float64), labels[own])
        expected = reference.predict_proba(features[fold == number].astype(np.float64))
        np.testing.assert_allclose(found[fold == number][:, [0, 1, 3]], expected, atol=5e-3)


def test_a_class_without_images_is_never_the_answer(data: Data) -> None:
    """Its logit lies below all others, and so far that it takes no probability from them."""
    logits = fitted(data).logits
    np.testing.assert_allclose(logits[:, 2], logits[:, [0, 1, 3]].min(axis=1) - ABSENT, rtol=1e-5)


def test_random_labels_are_not_learnt_by_heart(data: Data) -> None:
    """A layer that has as many weights as images is right about those it saw, and by chance about the others."""
    _, labels, image, is_plain = data
    random = np.random.default_rng(1)
    wide = np.repeat(random.normal(0, 1, (len(labels) // 2, 400)).astype(np.float16)[None], 2, axis=0)
    shuffled = np.tile(random.permutation(labels[is_plain]), 2)
    crossed = cross_fit(wide.reshape(len(labels), -1), shuffled, image, is_plain, classes=4)
    assert 0.2 < crossed.accuracy < 0.47
    assert min(STRENGTHS) < max(STRENGTHS)
