"""`optimiser.trains = "branch"`: a confidence branch for a classifier that stays as it is."""

import json
import shutil

import pytest
import torch

from tests.training.command_line import write_set
from tests.training.learning.steps_seen import StepsSeen
from training.data.splits import splits_for
from training.errors import RecipeError
from training.learning.finished_run import read_run
from training.learning.loop import Run
from training.learning.runtime.execution import choose_execution
from training.recipe import load_recipe

COMMON = ["data.dataset=colours", "data.validation=20", "data.calibration=30", "network.widths=[8,8,8]"]


def run_of(recipe_name, root, out, *changes, init=None, precision="fp32", command=None):
    recipe = load_recipe(recipe_name, [*COMMON, "optimiser.batch_size=20", "optimiser.epochs=2", *changes])
    execution = choose_execution("cpu", precision)
    run = Run(recipe, splits_for(recipe.data, root), 0, out, init=init, execution=execution, command=command)
    run.resume()
    return run


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A finished baseline, and the folder of its data."""
    folder = tmp_path_factory.mktemp("classifier")
    root = write_set(folder / "data")
    run_of("compact-cifar10-baseline", root, folder / "run").train()
    return root, folder / "run"


def test_the_classifier_stays_as_it_is_and_the_branch_learns(classifier, tmp_path):
    """Logits of the served network are the baseline's bit for bit, batch-norm statistics too; the branch has moved."""
    root, first = classifier
    run = run_of("compact-cifar10-branch", root, tmp_path / "run", init=first / "checkpoint.pt")
    before = {name: tensor.clone() for name, tensor in run.learner.network.state_dict().items()}
    run.train()
    after = run.learner.network.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if name.startswith("branch.")}
    images = torch.randn(4, 3, *run.splits.train.images.shape[1:3])
    served = read_run(first, root).network
    assert torch.equal(served(images).logits, read_run(tmp_path / "run", root).network(images).logits)


@pytest.mark.parametrize("shapes", [False, True])
def test_a_branch_that_only_reads_leaves_the_classifier_its_training(classifier, tmp_path, shapes):
    """Trained together with it, the classifier is bit for bit that of the baseline; not where the branch shapes it."""
    root, first = classifier
    changes = (f"confidence.shapes_features={str(shapes).lower()}", "confidence.hints_for=branch")
    run = run_of("compact-cifar10", root, tmp_path / "run", *changes)
    begun = {name: tensor.clone() for name, tensor in run.learner.network.branch.state_dict().items()}
    run.train()
    plain, beside = read_run(first, root).network.state_dict(), read_run(tmp_path / "run", root).network.state_dict()
    assert all(torch.equal(plain[name], beside[name]) for name in plain) is not shapes
    assert not any(torch.equal(begun[name], tensor) for name, tensor in run.learner.network.branch.state_dict().items())


def test_stopped_between_two_steps_it_ends_with_the_same_branch(classifier, tmp_path):
    """A run taken up again sees the same hard images as one that was never stopped."""
    root, first = classifier
    whole = run_of("compact-cifar10-branch", root, tmp_path / "whole", init=first / "checkpoint.pt")
    whole.train()
    halted = run_of("compact-cifar10-branch", root, tmp_path / "halted", init=first / "checkpoint.pt")

    def stop_after_three(report):
        if report.step == 3:
            raise KeyboardInterrupt

    halted.checkpoint_seconds = 0
    with pytest.raises(KeyboardInterrupt):
        halted.train([StepsSeen(stop_after_three)])
    resumed = run_of("compact-cifar10-branch", root, tmp_path / "halted", init=first / "checkpoint.pt")
    assert 0 < resumed.step < whole.step
    resumed.train()
    for name, tensor in whole.learner.network.state_dict().items():
        assert torch.equal(tensor, resumed.learner.network.state_dict()[name]), name


def test_hard_images_do_not_count_against_the_budget(classifier, tmp_path):
    """L_c of a step is that of the ordinary images: the first is the same with hard images and without."""
    root, first = classifier
    seen = {}
    for share in (0.0, 1.0):
        change = f"confidence.hard_share={share}"
        run = run_of("compact-cifar10-branch", root, tmp_path / str(share), change, init=first / "checkpoint.pt")
        run.train([StepsSeen(lambda report, share=share: seen.setdefault(share, report))])
    assert seen[0.0].confidence_loss == pytest.approx(seen[1.0].confidence_loss, rel=1e-6)
    assert seen[0.0].accuracy == seen[1.0].accuracy
    assert seen[0.0].loss != seen[1.0].loss


def test_a_run_tells_what_it_started_from(classifier, tmp_path):
    """The card can name both commands, in their order, and the precision that either was given."""
    root, first = classifier
    run = run_of("compact-cifar10-branch", root, tmp_path / "run", init=first / "checkpoint.pt", precision="bf16")
    run.train()
    assert read_run(tmp_path / "run", root).made_by == (
        "confgate-train fit compact-cifar10-baseline --seed 0 --out RUN1",
        "confgate-train fit compact-cifar10-branch --seed 0 --init RUN1/checkpoint.pt --precision bf16 --out RUN2",
    )
    assert json.loads((tmp_path / "run" / "run.json").read_text())["init"]["file"] == "checkpoint.pt"


def test_a_run_keeps_the_command_that_was_typed(classifier, tmp_path):
    """After the commands of the run it started from; resumed under another one, it keeps the first."""
    root, first = classifier
    earlier = shutil.copytree(first, tmp_path / "earlier")
    record = json.loads((earlier / "run.json").read_text())
    (earlier / "run.json").write_text(json.dumps(record | {"command": "confgate-train fit first --out runs/first"}))
    for words in ("--out runs/second", "--out runs/second --workers 2"):
        run = run_of("compact-cifar10-branch", root, tmp_path / "run", init=earlier / "checkpoint.pt", command=words)
        run.train()
    assert read_run(tmp_path / "run", root).made_by == (
        "confgate-train fit first --out runs/first",
        "--out runs/second",
    )


def test_without_a_trained_classifier_it_is_refused(classifier, tmp_path):
    """No --init, another network, images divided otherwise, and a run that is not finished: one message each."""
    root, first = classifier
    with pytest.raises(RecipeError, match="needs a classifier that is trained already"):
        run_of("compact-cifar10-branch", root, tmp_path / "a")
    wider = "network.widths=[8,8,16]"
    with pytest.raises(RecipeError, match="not of the same network"):
        run_of("compact-cifar10-branch", root, tmp_path / "b", wider, init=first / "checkpoint.pt")
    with pytest.raises(RecipeError, match="divided otherwise"):
        run_of("compact-cifar10-branch", root, tmp_path / "c", "data.split_seed=1", init=first / "checkpoint.pt")
    unfinished = shutil.copytree(first, tmp_path / "unfinished")
    (unfinished / "result.json").unlink()
    with pytest.raises(RecipeError, match="not finished"):
        run_of("compact-cifar10-branch", root, tmp_path / "d", init=unfinished / "checkpoint.pt")


@pytest.mark.parametrize(
    ("recipe", "change", "message"),
    [
        ("compact-cifar10", "confidence.hard_share=0.5", "a classifier must not learn from these"),
        ("compact-cifar10-branch", "confidence.enabled=false", "no branch to train"),
        ("compact-cifar10-branch", "augment.early_share=0.5", "early_share must be 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(recipe, change, message):
    """Hard images are for the branch alone, which must be there, and its classifier has seen its small images."""
    with pytest.raises(RecipeError, match=message):
        load_recipe(recipe, [change])
