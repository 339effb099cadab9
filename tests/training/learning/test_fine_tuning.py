"""What fine-tuning adds to a training: AdamW, cosine, rates that differ between stages, and classes of unequal size."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.training.command_line import write_set
from tests.training.learning.steps_seen import StepsSeen
from training.data.splits import splits_for
from training.errors import RecipeError
from training.learning.balance import balanced_order, class_weights
from training.learning.batches import Plan
from training.learning.loop import Run
from training.learning.loss import confidence_loss
from training.learning.optimiser import make_optimiser
from training.learning.runtime.execution import choose_execution
from training.networks import add_confidence_branch, build_network
from training.networks.stages import stages_of
from training.networks.weights import completed
from training.recipe import Schedule, load_recipe

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ["data.dataset=colours", "data.validation=20", "data.calibration=30", "network.widths=[8,8,8]"]
FINE = [
    "optimiser.kind=adamw",
    "optimiser.filter_rate=0",
    "optimiser.schedule.kind=cosine",
    "optimiser.layer_decay=0.5",
]
SHORT = ["optimiser.batch_size=20", "optimiser.epochs=2", "optimiser.learning_rate=0.01"]


def run_of(root, out, *changes, **options):
    recipe = load_recipe("compact-cifar10", [*SMALL, *FINE, *SHORT, *changes])
    run = Run(recipe, splits_for(recipe.data, root), 0, out, **options)
    run.resume()
    return run


def test_adamw_takes_the_steps_of_torch():
    """Three steps with the recipe's rate, decay and first beta; one-dimensional parameters are not decayed."""
    changes = ["optimiser.learning_rate=0.02", "optimiser.weight_decay=0.1", "optimiser.momentum=0.8"]
    torch.manual_seed(0)
    settings = load_recipe("compact-cifar10", ["optimiser.kind=adamw", "optimiser.filter_rate=0", *changes]).optimiser
    settings = settings.model_copy(update={"offset_rate_scale": 1.0})
    ours, theirs = (build_network("mlp", 3, 2, (4,)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    decay = [
        {"params": [p for p in theirs.parameters() if (p.ndim > 1) is big], "weight_decay": 0.1 * big}
        for big in (True, False)
    ]
    expected = torch.optim.AdamW(decay, lr=0.02, betas=(0.8, 0.999))
    found = make_optimiser(ours, settings)
    for step in range(3):
        for network, optimiser in ((ours, found), (theirs, expected)):
            generator = torch.Generator().manual_seed(step)
            for parameter in network.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimiser.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_cosine_schedule_is_torchs_after_a_linear_warm_up():
    """From a tenth up to the full rate in the first fifth, then torch's CosineAnnealingLR down to a hundredth."""
    schedule = Schedule(kind="cosine", start=0.1, peak_at=0.2, end=0.01)
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=80, eta_min=0.01)
    for step in range(20):
        assert schedule.multiplier(step / 100, 0) == pytest.approx(0.1 + 0.9 * step / 20)
    for step in range(20, 100):
        assert schedule.multiplier(step / 100, 0) == pytest.approx(optimiser.param_groups[0]["lr"])
        optimiser.step()
        reference.step()


@pytest.mark.parametrize(
    ("name", "first", "last", "stages"),
    [
        ("efficientnet-lite0", "conv_stem.weight", "conv_head.weight", 9),  # stem, seven stages, the last convolution
        ("torchvision:resnet18", "conv1.weight", "layer4.1.conv2.weight", 9),  # stem, eight blocks
        ("torchvision:vit_b_16", "class_token", "encoder.layers.encoder_layer_11.mlp.3.weight", 13),  # patches, layers
        ("torchvision:mobilenet_v3_small", "features.0.0.weight", "classifier.0.weight", 14),
    ],
)
def test_stages_run_from_the_image_to_the_features(name, first, last, stages):
    """Each parameter is in one stage; patches and stem are the first, what the head reads comes from the last."""
    with torch.device("meta") if "vit" in name else torch.device("cpu"):
        body = build_network(name, 3, 224 if "vit" in name else 64).body
    found = stages_of(body)
    assert len(found) == stages
    where = {id(parameter): number for number, stage in enumerate(found) for parameter in stage}
    names = dict(body.named_parameters())
    assert sum(len(stage) for stage in found) == len(where) == len(names)
    assert where[id(names[first])] == 0
    assert where[id(names[last])] == stages - 1


def test_stages_nearer_to_the_image_learn_more_slowly():
    """With layer_decay 0.5 and three stages before the head the rates are 1/8, 1/4, 1/2 and, of head and branch, 1."""
    network = add_confidence_branch(build_network("mlp", 3, 2, (5, 6, 7)))
    settings = load_recipe("compact-cifar10", [*FINE, "optimiser.learning_rate=0.8"]).optimiser
    settings = settings.model_copy(update={"offset_rate_scale": 1.0})
    rates = {
        id(p): group["full_rate"] for group in make_optimiser(network, settings).param_groups for p in group["params"]
    }
    found = {name: rates[id(p)] for name, p in network.named_parameters() if name.endswith("weight")}
    # Three layers of the body, two of the head, one of the branch.
    assert list(found.values()) == pytest.approx([0.1, 0.2, 0.4, 0.8, 0.8, 0.8])
    assert len(rates) == len(list(network.parameters()))


def test_class_weights_are_those_of_scikit_learn():
    """images / (classes · images of the class), also for counts that do not divide."""
    from sklearn.utils.class_weight import compute_class_weight

    labels = np.repeat([0, 1, 2], [50, 7, 13])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    np.testing.assert_allclose(class_weights(labels, 3), expected, rtol=1e-6)


@pytest.mark.parametrize("hinted", [False, True])
def test_the_loss_weighs_images_by_their_class(hinted):
    """Without hints the task is torch's weighted cross-entropy, its sum divided by the images; with hints by hand."""
    weights, labels = torch.tensor([0.5, 2.0]), torch.tensor([0, 1, 1])
    logits = torch.log(torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.875, 0.125]]))
    parts = confidence_loss(logits, torch.zeros(3), labels, torch.full((3,), hinted), 0.1, "network", weights)
    if hinted:  # c = 1/2, so p' is (1 + p)/2: 5/8, 3/4, 9/16
        expected = (0.5 * math.log(8 / 5) + 2 * math.log(4 / 3) + 2 * math.log(16 / 9)) / 3
    else:
        expected = F.cross_entropy(logits, labels, weights, reduction="sum").item() / 3
    assert parts.task.item() == pytest.approx(expected, rel=1e-6)
    assert parts.confidence.item() == pytest.approx(math.log(2), rel=1e-6)


def test_the_sampler_shows_every_class_equally_often():
    """60, 9 and 3 images: 24 of each; none of the largest class twice, of the others each as often as the next."""
    labels = torch.tensor([0] * 60 + [1] * 9 + [2] * 3)
    order = balanced_order(labels, torch.Generator().manual_seed(1))
    counts = torch.bincount(order, minlength=72)
    assert [int(counts[labels == one].sum()) for one in range(3)] == [24, 24, 24]
    assert counts[:60].max() == 1
    assert set(counts[60:69].tolist()) == {2, 3}
    assert set(counts[69:].tolist()) == {8}
    plan = Plan(seed=1, images=72, batch_size=12, balanced=labels)
    epochs = [torch.cat([plan.indices(6 * epoch + step) for step in range(6)]) for epoch in (0, 1)]
    assert all(torch.bincount(labels[order]).tolist() == [24, 24, 24] for order in epochs)
    assert not torch.equal(*epochs)


@pytest.mark.parametrize("balance", ["weights", "sampler"])
def test_a_stopped_fine_tuning_ends_with_the_same_weights(tmp_path, balance):
    """AdamW's moments, the rates of the stages and the balanced order go on from a checkpoint bit for bit."""
    root, changes = write_set(tmp_path / "data"), [f"optimiser.balance={balance}"]
    whole = run_of(root, tmp_path / "whole", *changes)
    whole.train()
    stopped = run_of(root, tmp_path / "stopped", *changes, checkpoint_seconds=0)

    def stop(report):
        if report.step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.train([StepsSeen(stop)])
    resumed = run_of(root, tmp_path / "stopped", *changes)
    assert 0 < resumed.step <= 7
    resumed.train()
    for name, value in whole.learner.network.state_dict().items():
        assert torch.equal(value, resumed.learner.network.state_dict()[name]), name


def test_efficientnet_learns_in_bf16(tmp_path):
    """From its pretrained weights, 16 steps in bfloat16: the loss falls by a third, and the weights stay float32."""
    recipe = load_recipe(
        "compact-cifar10",
        [
            *("data.dataset=colours", "data.validation=20", "data.calibration=30", "data.size=32", *FINE),
            *("optimiser.epochs=2", "optimiser.batch_size=12", "optimiser.learning_rate=3e-3"),
            *("optimiser.layer_decay=0.9", "augment.cutout_size=0", "augment.crop_padding=0"),
            *("optimiser.offset_rate_scale=1", "optimiser.average_decay=0", "augment.early_share=0"),
            *("confidence.enabled=false", "network.name=efficientnet-lite0", "network.weights=pretrained"),
        ],
        complete=lambda fields: completed(fields | {"network": {**fields["network"], "widths": None}}),
    )
    splits = splits_for(recipe.data, write_set(tmp_path / "data"))
    run = Run(recipe, splits, 0, tmp_path / "run", execution=choose_execution("cpu", "bf16"))
    run.resume()
    assert run.mean.tolist() == pytest.approx([127 / 255] * 3)
    losses = []
    run.train([StepsSeen(lambda report: losses.append(report.loss))])
    assert len(losses) == 16
    assert np.mean(losses[-4:]) < 0.67 * np.mean(losses[:2])
    assert all(p.dtype == torch.float32 for p in run.learner.network.parameters())


def test_filters_cannot_step_orthogonally_under_adamw():
    """The two fields contradict each other and are refused together, by name."""
    with pytest.raises(RecipeError, match=r"optimiser\.filter_rate is for optimiser\.kind=sgd"):
        load_recipe("compact-cifar10", ["optimiser.kind=adamw", "optimiser.filter_rate=0.1"])
