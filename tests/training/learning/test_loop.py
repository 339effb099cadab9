"""What the training loop is made of: where it runs, what a batch is, what it starts from, when it warns."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.command_line import write_folder, write_set
from tests.training.learning.steps_seen import StepsSeen
from training.data.splits import LabelledImages, splits_for
from training.errors import RecipeError
from training.learning.batches import Plan, make_batches
from training.learning.epoch_summary import EpochSummary, StepTotals
from training.learning.fit import FitOptions, next_command
from training.learning.loop import Run
from training.learning.loss import BudgetController
from training.learning.pretrained import load_pretrained
from training.learning.runtime.execution import choose_execution, faster_precision
from training.learning.runtime.listener import Listener, StepReport
from training.networks import add_confidence_branch, build_network
from training.recipe import Data, load_recipe

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("asked", "machine", "expected"),
    [
        (("auto", "auto"), {"cuda": False}, "cpu"),
        (("auto", "auto"), {"cuda": True, "cuda_bf16": True}, "cuda, bf16, channels_last"),
        (("auto", "auto"), {"cuda": True, "cuda_bf16": False}, "cuda, channels_last"),
        (("cuda", "fp32"), {"cuda": True, "cuda_bf16": True}, "cuda, channels_last"),
        (("cpu", "auto"), {"cuda": True, "cuda_bf16": True}, "cpu"),
        (("cpu", "bf16", True), {"cuda": False}, "cpu, bf16, compiled"),
    ],
)
def test_device_and_precision_are_chosen_by_what_there_is(asked, machine, expected):
    """`auto` takes the GPU and bfloat16 where they are there; what is asked for is taken."""
    assert choose_execution(*asked, **machine).description == expected


def test_cuda_that_is_not_there_is_refused():
    """`--device cuda` never falls back silently; each rank takes the GPU of its own number."""
    with pytest.raises(RecipeError, match="torch sees no CUDA device"):
        choose_execution("cuda", cuda=False)
    assert choose_execution("cuda", "fp32", local_rank=1, cuda=True).device == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("precision", "able", "told"),
    [
        ("auto", {"avx512_bf16": True}, True),
        ("auto", {"amx_bf16": True}, True),
        ("auto", {"avx2": True, "avx512_bf16": False}, False),
        ("bf16", {"avx512_bf16": True}, False),
    ],
)
def test_whoever_could_train_faster_is_told(precision, able, told):
    """A CPU that computes in bfloat16 is named where it is not used so; it is never used so unasked."""
    advice = faster_precision(choose_execution("cpu", precision, cuda=False), able)
    assert (advice is not None and "--precision bf16" in advice) is told
    assert faster_precision(choose_execution("auto", "fp32", cuda=True), {"avx512_bf16": True}) is None


def recipe_for(*changes):
    settings = ["data.dataset=colours", "data.validation=20", "data.calibration=30", "network.widths=[8,8,8]"]
    return load_recipe("compact-cifar10", [*settings, "optimiser.batch_size=20", "optimiser.epochs=1", *changes])


def run_for(tmp_path, *changes, **options):
    root = write_set(tmp_path / "data")
    recipe = recipe_for(*changes)
    run = Run(recipe, splits_for(recipe.data, root), 0, tmp_path / "run", **options)
    assert run.resume() is None
    return run


def test_bf16_changes_the_forward_pass_and_not_the_loss(tmp_path):
    """Under bfloat16 the losses stay float32 and near those of float32."""
    losses = {}
    for precision in ("fp32", "bf16"):
        run = run_for(tmp_path / precision, execution=choose_execution("cpu", precision))
        seen = losses.setdefault(precision, [])
        run.train([StepsSeen(lambda report, seen=seen: seen.append(report.loss))])
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)
    # A loss computed in bfloat16 would have eight significant bits.
    assert not all(float(torch.tensor(loss).bfloat16()) == loss for loss in losses["bf16"])


class Diary(Listener):
    """Writes down what it hears, and whether result.json was there."""

    def __init__(self, folder):
        self.folder, self.heard = folder, []

    def started(self, start):
        self.heard.append(("started", start.step, start.total_steps))

    def step_done(self, report, learning_rate):
        assert learning_rate > 0
        self.heard.append(("step", report.step))

    def epoch_done(self, report, step, seconds):
        assert seconds > 0
        self.heard.append(("epoch", report.epoch, step))

    def finished(self, result):
        self.heard.append(("finished", result.steps, (self.folder / "result.json").is_file()))


def test_listeners_hear_of_every_step_and_epoch(tmp_path):
    """Two listeners hear the same, in order; an epoch comes after its last step, the end after result.json."""
    run = run_for(tmp_path, "optimiser.epochs=2")
    diaries = [Diary(tmp_path / "run"), Diary(tmp_path / "run")]
    run.train(diaries)
    steps = [("step", step) for step in range(1, 11)]
    expected = [("started", 0, 10), *steps[:5], ("epoch", 0, 5), *steps[5:], ("epoch", 1, 10), ("finished", 10, True)]
    assert [diary.heard for diary in diaries] == [expected, expected]


@pytest.mark.parametrize(("total", "logged"), [(100, 100), (4_000, 2_000), (4_001, 2_001)])
def test_a_long_run_logs_about_2000_steps_and_its_last(total, logged):
    """metrics.jsonl and TensorBoard stay small, however long the run is."""
    reports = [StepReport(0, step, total, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0) for step in range(1, total + 1)]
    assert sum(report.is_logged for report in reports) == logged
    assert reports[-1].is_logged


def test_a_run_that_moves_to_another_precision_says_so(tmp_path):
    """Taken up with other numerics than it was begun with, a run warns that it is no longer bit-identical."""
    run = run_for(tmp_path)
    run.save_checkpoint()
    again = Run(run.recipe, run.splits, 0, tmp_path / "run", execution=choose_execution("cpu", "bf16"))
    assert "begun with cpu and goes on with cpu, bf16" in again.resume()


def test_another_run_is_not_overwritten(tmp_path):
    """A folder that holds a run with another seed or recipe is refused, and the difference is named."""
    run = run_for(tmp_path)
    run.save_checkpoint()
    before = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    recipe = recipe_for("confidence.enabled=false")
    with pytest.raises(RecipeError, match=r"confidence\.enabled is False, it was True; the seed is 1, it was 0"):
        Run(recipe, run.splits, 1, tmp_path / "run").resume()
    assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == before


def test_divergence_stops_the_run(tmp_path):
    """A loss that is no longer finite ends the run with advice, and no checkpoint of it is kept."""
    run = run_for(tmp_path, "optimiser.learning_rate=1e30", checkpoint_seconds=1e9)
    with pytest.raises(RecipeError, match=r"training has diverged.*optimiser\.learning_rate"):
        run.train()
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


@pytest.mark.parametrize("kind", ["array", "folder"])
def test_ranks_share_the_batch_of_one_process(tmp_path, kind):
    """The parts of two ranks, put together, are the batch one process sees: images, Cutout, labels and hints."""
    if kind == "array":
        root = write_set(tmp_path)
        recipe = recipe_for("augment.cutout_size=4")
        part = splits_for(recipe.data, root).train
    else:
        recipe = recipe_for("augment.cutout_size=4", "augment.smallest_area=0.3")
        folder = write_folder(tmp_path / "photos")
        part = splits_for(
            Data(dataset="photos", folder=str(folder), size=12, validation=5, calibration=5), folder
        ).train

    def batch(rank, world):
        return next(make_batches(part, recipe, Plan(3, len(part), 20, rank, world), CPU, workers=0).between(1, 2))

    whole, first, second = batch(0, 1), batch(0, 2), batch(1, 2)
    for field in ("images", "kept", "labels", "hinted"):
        assert torch.equal(torch.cat([getattr(first, field), getattr(second, field)]), getattr(whole, field))
    assert len(first.labels) == 10
    assert 0 < int(whole.hinted.sum()) < 20


def test_an_epoch_shows_every_image_once():
    """Steps of one epoch partition the images (less an incomplete batch), in another order each epoch."""
    plan = Plan(seed=1, images=103, batch_size=10)
    epochs = [torch.cat([plan.indices(step) for step in range(10 * e, 10 * e + 10)]) for e in (0, 1)]
    assert all(len(set(order.tolist())) == 100 for order in epochs)
    assert not torch.equal(*epochs)


def test_batches_that_cannot_be_made_are_refused():
    """A batch larger than the data or not divisible among the processes is refused by its field's name."""
    with pytest.raises(RecipeError, match=r"optimiser\.batch_size is 20, but there are only 10"):
        Plan(0, images=10, batch_size=20).check()
    with pytest.raises(RecipeError, match="3 processes cannot share evenly"):
        Plan(0, images=100, batch_size=20, world=3).check()
    part = LabelledImages(np.zeros((4, 12, 12, 3), np.uint8), np.zeros(4, np.int64))
    with pytest.raises(RecipeError, match=r"augment\.smallest_area is 0\.5"):
        make_batches(part, recipe_for("augment.smallest_area=0.5"), Plan(0, 4, 2), CPU, 0)


def test_the_epoch_summary_equals_numpy_and_survives_a_checkpoint():
    """Accuracy, mean L_c and the spread of c over an epoch, with its state saved and restored in the middle."""
    random = np.random.default_rng(0)
    confidences = random.random((6, 10))
    l_c = random.random(6)
    summary = EpochSummary()
    for step in range(6):
        c = confidences[step]
        summary.add(StepTotals(10, step, 1.0, l_c[step], c.sum(), (c**2).sum()))
        if step == 2:
            summary = EpochSummary(**summary.state())
    report = summary.report(1, 0.5, BudgetController(0.3, 0.1, 100), learns=True)
    assert report.confidence_spread == pytest.approx(confidences.std(ddof=1))
    assert report.confidence_loss == pytest.approx(l_c.mean())
    assert (report.train_accuracy, report.train_wrong) == (15 / 60, 45)
    assert report.warnings == []


@pytest.mark.parametrize(
    ("totals", "message"),
    [
        (StepTotals(1000, 900, 1.0, 0.3, 500.0, 250.0), "nearly the same for every image (std 0.000)"),
        (StepTotals(1000, 900, 1.0, 1.2, 500.0, 400.0), "L_c is 1.200, far from the budget 0.3"),
        (StepTotals(1000, 900, 1.0, 0.05, 500.0, 400.0), "L_c is 0.050, far from the budget 0.3"),
        (StepTotals(1000, 999, 1.0, 0.3, 500.0, 400.0), "only 1 of 1000 training images were misclassified"),
    ],
)
def test_each_way_of_collapse_is_warned_of(totals, message):
    """Confidence without spread, L_c off its budget, or nothing left to be wrong about: each gives one warning."""
    summary = EpochSummary()
    summary.add(totals)
    controller = BudgetController(0.3, 0.1, 100)
    (warning,) = summary.report(1, 0.9, controller, learns=True).warnings
    assert message in warning
    assert summary.report(1, 0.9, controller, learns=False).warnings == []
    assert summary.report(0, 0.9, controller, learns=True).warnings == []  # the first epoch is still on its way


def network(classes=3):
    return add_confidence_branch(build_network("mlp", classes, 4, (8,)))


def test_weights_of_a_plain_network_find_their_place(tmp_path):
    """Names without our "body." fit, other shapes are skipped, and the numbers really arrive."""
    other = network(classes=5)
    plain = {name.removeprefix("body."): value for name, value in other.state_dict().items() if "branch" not in name}
    torch.save(plain, tmp_path / "plain.pt")
    ours = network()
    fresh_branch = ours.branch[0].weight.clone()
    report = load_pretrained(ours, tmp_path / "plain.pt")
    assert torch.equal(ours.body[1].weight, other.body[1].weight)
    assert torch.equal(ours.branch[0].weight, fresh_branch)
    assert report.other_shape == (
        "head.2.weight: [3, 8] here, [5, 8] in the file",
        "head.2.bias: [3] here, [5] in the file",
    )
    assert report.fresh == ("branch.0.weight", "branch.0.bias")
    assert report.unused == ()


def test_a_finished_run_can_be_the_start_of_another(tmp_path):
    """`--init` takes a run's checkpoint, and of it the averaged weights that would be served."""
    run = run_for(tmp_path)
    run.train()
    ours = build_network("compact", 3, 12, (8, 8, 8))
    load_pretrained(ours, tmp_path / "run" / "checkpoint.pt")
    assert torch.equal(ours.head.weight, run.learner.averaged.module.head.weight)
    assert not torch.equal(ours.head.weight, run.learner.network.head.weight)


def test_weights_that_fit_nothing_or_hold_code_are_refused(tmp_path):
    """A state dict of another network, a file with objects in it and a missing file: one message each."""
    torch.save({"something.else": torch.zeros(3)}, tmp_path / "other.pt")
    torch.save(build_network("mlp", 3, 4, (8,)), tmp_path / "objects.pt")
    for file, message in (
        ("other.pt", "none of its 1 tensors fits"),
        ("objects.pt", "files that hold code are refused"),
        ("absent.pt", "no such file"),
    ):
        with pytest.raises(RecipeError, match=message):
            load_pretrained(network(), tmp_path / file)


def test_the_next_command_names_a_version_that_is_free(tmp_path, monkeypatch):
    """A finished run is exported as the version after the highest there is, for none is overwritten."""
    monkeypatch.chdir(tmp_path)
    options = FitOptions(
        *("compact-cifar10", Path("runs/a"), 0, (), Path("data"), None, None, None, None),
        *("cpu", "fp32", False, 0, 60.0),
    )
    for there, free in (([], 1), (["1", "2", "notes"], 3)):
        for name in there:
            (tmp_path / "models" / "cifar10" / name).mkdir(parents=True)
        expected = f"confgate-train export runs/a --out models/cifar10/{free}"
        assert next_command(options, load_recipe("compact-cifar10")) == expected


def test_the_next_command_names_the_model_of_a_folder_after_its_run(tmp_path, monkeypatch):
    """Photos in a folder that is called like a model that is served do not become a version of that model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "clothing" / "1").mkdir(parents=True)
    options = FitOptions(
        *("compact-cifar10", Path("runs/mine"), 0, (), Path("data"), tmp_path / "clothing", None, None, None),
        *("cpu", "fp32", False, 0, 60.0),
    )
    recipe = load_recipe("compact-cifar10", ["data.dataset=clothing"])
    assert next_command(options, recipe) == "confgate-train export runs/mine --out models/mine/1"
