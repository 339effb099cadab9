"""A head fitted to features, against scikit-learn, and what a recipe leaves to the number of photos."""

import os

import numpy as np
import pytest
import torch

from tests.conftest import RED
from training.learning.automatic import automatic
from training.learning.balance import class_weights
from training.learning.head.fit import ENOUGH_WORSE, PENALTIES, Examples, fitted_heads

pytestmark = pytest.mark.usefixtures("one_thread")


def examples(images, seed):
    """Three classes of unequal size whose features overlap; the features differ in mean and scale."""
    random = np.random.default_rng(seed)
    labels = random.choice(3, images, p=[0.6, 0.3, 0.1])
    features = random.normal(0, 1.5, (images, 6)) + np.eye(3, 6)[labels] * 2
    return Examples(torch.tensor(features * 0.4 + 3, dtype=torch.float32), torch.tensor(labels))


def test_the_head_is_the_logistic_regression_of_scikit_learn():
    """For every penalty tried: the same probabilities on new images, with balanced classes."""
    from sklearn.linear_model import LogisticRegression

    train, validation = examples(300, 1), examples(200, 2)
    scale = train.features.var(0).mean().sqrt()
    found = list(fitted_heads(train, validation, class_weights(train.labels.numpy(), 3)))
    assert len(found) >= 3
    for fitted in found:
        strength = 1 / (fitted.penalty * 300)
        reference = LogisticRegression(C=strength, class_weight="balanced", tol=1e-6, max_iter=1_000)
        reference.fit((train.features / scale).double().numpy(), train.labels.numpy())
        expected = reference.predict_proba((validation.features / scale).double().numpy())
        ours = torch.softmax(validation.features @ fitted.weight.T + fitted.bias, 1).numpy()
        np.testing.assert_allclose(ours, expected, atol=1e-3)
        assert fitted.validation_accuracy == (ours.argmax(1) == validation.labels.numpy()).mean()


def test_weaker_penalties_are_left_out_once_they_do_not_help():
    """The last fits are all worse than the best, which is neither the strongest nor the weakest penalty."""
    found = list(fitted_heads(examples(60, 3), examples(400, 4), torch.ones(3)))
    losses = [fitted.validation_loss for fitted in found]
    assert [fitted.penalty for fitted in found] == list(PENALTIES[: len(found)])
    assert 0 < int(np.argmin(losses)) == len(losses) - 1 - ENOUGH_WORSE


@pytest.mark.parametrize(
    ("photos", "parts", "calibration", "epochs", "batch"),
    [
        (100, (), 25, 60, 8),  # 50 of them to train on
        (600, (), 150, 60, 16),
        (3000, (), 300, 28, 32),  # 1950 to train on: 750 fewer without the two parts
        (3000, ("val", "test"), 300, 20, 32),
    ],
)
def test_batches_and_parts_follow_the_number_of_photos(tmp_path, photos, parts, calibration, epochs, batch):
    """Calibration takes 300 photos, but not more than a quarter; the fewer there are to train on, the more epochs."""
    first = tmp_path / "photo.png"
    first.write_bytes(RED)
    root = tmp_path / "photos"
    for part, count in [("train" if parts else "", photos), *((part, 10) for part in parts)]:
        for number in range(count):
            file = root / part / ("cat", "dog")[number % 2] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            os.link(first, file)
    asked = {"data": {"folder": str(root), "validation": "auto", "calibration": "auto", "test": "auto"}}
    asked["optimiser"] = {"trains": "auto", "epochs": "auto", "batch_size": "auto"}
    for on_cpu, trains in ((True, "head"), (False, "network")):
        found = automatic(asked, "photos", on_cpu)
        assert found["optimiser"] == {"trains": trains, "epochs": epochs, "batch_size": batch}
    assert found["data"]["calibration"] == calibration
    assert found["data"]["test"] == (None if parts else 0.15)
