"""A folder of photos and pretrained weights, from the command line to a bundle."""

import json

import pytest

from service.model.bundle import load_bundle
from tests.training.command_line import in_this_process, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")

RECIPE = """
[data]
dataset = "photos"

[network]
name = "efficientnet-lite0"

[augment]
crop_padding = 0
cutout_size = 0

[confidence]
shapes_features = false
hints_for = "branch"

[optimiser]
kind = "adamw"
epochs = 1
batch_size = 16
learning_rate = 1e-3
weight_decay = 0.01
layer_decay = 0.7
balance = "weights"

[optimiser.schedule]
kind = "cosine"
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_photos_and_pretrained_weights_become_a_bundle(tmp_path):
    """`fit --weights pretrained`, then `export`: the input is what the weights expect, and has a perturbed graph."""
    photos, run, out = write_folder(tmp_path / "photos", each=40), tmp_path / "run", tmp_path / "models" / "mine" / "1"
    (tmp_path / "recipe.toml").write_text(RECIPE)
    fit = ("fit", tmp_path / "recipe.toml", "--data", photos, "--size", 32, "--out", run, "--workers", 0)
    said = " ".join(in_this_process(*fit, "--weights", "pretrained").stdout.split())
    assert "weights 'pretrained of efficientnet-lite0': 294 tensors taken for the body; the head is fresh" in said
    record = json.loads((run / "run.json").read_text())
    assert record["mean"] == pytest.approx([127 / 255] * 3)
    assert record["weights"]["tensors"] == 294
    refused = in_this_process(*fit, check=False)
    assert "network.weights is None, it was 'pretrained'" in " ".join(refused.stderr.split())
    in_this_process("export", run, "--out", out)
    bundle = load_bundle(out).manifest
    assert (bundle.input.width, bundle.input.crop_fraction, bundle.input.interpolation) == (32, 0.875, "bicubic")
    assert "confidence_preprocessed" in bundle.scores
