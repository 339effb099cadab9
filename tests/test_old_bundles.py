"""A bundle of schema_version 1 answers as it did before there were pairs of thresholds."""

import json

import httpx
import pytest

from service.model.bundle import load_bundle
from tests.conftest import Service
from tests.test_shipped_models import FIXTURES, ROOT, predictions, tiles

# fashion_mnist/1 over fashion_mnist and CIFAR-10 images, recorded with version 0.1 of the service.
RECORDED = json.loads((FIXTURES / "old_answers.json").read_text())
NEW = {"accepted", "reason", "certainty", "certainty_threshold"}


@pytest.fixture(scope="module")
def answers() -> list[list[dict]]:
    """What the service answers now to each recorded query."""
    assert load_bundle(ROOT / "models" / "fashion_mnist" / "1").manifest.schema_version == 1
    images = tiles("fashion_mnist")[:6] + tiles("cifar10")[:6]
    running = Service(ROOT / "models").wait_until_serving()
    with httpx.Client(base_url=running.url, timeout=60) as client:
        found = [
            predictions(client, images, model="fashion_mnist", version="1", **recorded["query"])
            for recorded in RECORDED
        ]
    assert running.stop() == 0
    return found


def test_every_field_keeps_its_value(answers):
    """Classes, decisions, names and numbers are the recorded ones; only new fields are added."""
    for recorded, found in zip(RECORDED, answers, strict=True):
        for before, now in zip(recorded["predictions"], found, strict=True):
            assert set(now) == set(before) | NEW | {"file_name"}
            for field, value in before.items():
                assert now[field] == (pytest.approx(value, abs=2e-5) if field != "label" else value), field


def test_the_new_fields_say_the_same_in_other_words(answers):
    """accepted is in_distribution; the reason follows from the score; certainty is the largest probability."""
    for recorded, found in zip(RECORDED, answers, strict=True):
        softmax = recorded["query"].get("score") == "max_softmax"
        for now in found:
            assert now["accepted"] == now["in_distribution"]
            refused = "unsure" if softmax else "unfamiliar"
            assert now["reason"] == (None if now["accepted"] else refused)
            assert now["certainty"] == max(now["probabilities"].values())
            assert now["certainty_threshold"] is None
    assert {now["reason"] for found in answers for now in found} == {None, "unsure", "unfamiliar"}
