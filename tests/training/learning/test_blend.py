"""Weights between the start and the end of a fine-tuning."""

import pytest
import torch
from torch import nn

from training.learning.blend import SHARES, blends
from training.networks import Classifier


def network(value):
    body = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    made = Classifier(body, nn.Linear(3, 2), feature_width=3)
    with torch.no_grad():
        for tensor in made.state_dict().values():
            tensor.fill_(value)
    return made.eval()


def test_every_weight_and_statistic_lies_between_start_and_end():
    """From 2 to 12 a share s is 2 + 10 s; the count of a batch norm is the end's, and the end itself stays as it is."""
    end, measured = network(12), []

    def measure(blended):
        measured.append(blended.head.weight.flatten()[0].item())
        return 0.5, 1.0

    found = list(blends(network(2).state_dict(), end, measure))
    assert [blend.share for blend in found] == list(SHARES)
    for blend, seen in zip(found, measured, strict=True):
        assert seen == pytest.approx(2 + 10 * blend.share)
        for name, value in blend.state.items():
            expected = 12 if name.endswith("num_batches_tracked") else 2 + 10 * blend.share
            assert value.flatten()[0].item() == pytest.approx(expected), name
    assert all((value == 12).all() for value in end.state_dict().values())
