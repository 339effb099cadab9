"""Readings of a batch: each number of each image is finite, or the image has an error instead."""

import math
from pathlib import Path

import numpy as np
import pytest

from service.errors import InferenceFailed
from service.model.bundle import load_bundle
from service.model.gate import OutputReader, Reading
from service.model.session import open_session
from tests.conftest import make_bundle


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("confidence", [True, False])
def test_every_output_of_the_perturbed_graph_is_checked(models: Path, confidence: bool, number: float) -> None:
    """Whichever output is not finite for an image, it alone has an error; the other readings stay as they are."""
    bundle = load_bundle(make_bundle(models, confidence=confidence, all_scores=True).folder)
    read = OutputReader(bundle.manifest, "perturbed")
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)
    outputs = open_session(bundle, "perturbed", "cpu").run(images)
    good = read(outputs)
    assert all(isinstance(reading, Reading) for reading in good)
    for name, rows in outputs.items():
        spoilt = {**outputs, name: rows.copy()}
        spoilt[name].reshape(5, -1)[3, -1] = number
        readings = read(spoilt)
        assert isinstance(readings[3], InferenceFailed), name
        assert readings[:3] + readings[4:] == good[:3] + good[4:]
