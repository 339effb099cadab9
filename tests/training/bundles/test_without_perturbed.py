"""A network with an operator that has no gradient rule: its bundle comes without a perturbed graph, and works."""

import subprocess
import sys

import httpx
import pytest

from service.model.bundle import load_bundle
from tests.running_service import Service
from tests.training.command_line import ENVIRONMENT, REPOSITORY, confgate_train, write_set
from tests.training.conftest import LIMIT

BRANCH = "compact-cifar10"
# The commands of an installation whose table of rules lacks an operator that the network has.
WITHOUT_RULE = """
import sys
from training.cli.main import main
from training.graphs.gradient.rules import RULES
import training.graphs.gradient

del RULES[sys.argv.pop(1)]
main()
"""
NOTE = "no input preprocessing, and no score confidence_preprocessed: cannot differentiate MaxPool (node '"


def without_rule(operator: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_RULE, operator, *map(str, arguments)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def exported(reproduced, tmp_path_factory):
    """The bundle of a network with a confidence branch, and what `export` said."""
    out = tmp_path_factory.mktemp("models") / "plain" / "1"
    arguments = ("export", reproduced.run(BRANCH), "--out", out, "--ood", "uniform", "--data-root", reproduced.data)
    return out, without_rule("MaxPool", *arguments).stdout


def test_export_names_the_operator_and_writes_the_bundle(exported):
    """The branch's own score is there, the preprocessed one is not, and a note says which node is the reason."""
    bundle, said = exported
    manifest = load_bundle(bundle).manifest
    assert set(manifest.graphs) == {"forward"}
    assert "confidence" in manifest.scores
    assert manifest.preprocessed_score is None
    assert f"note: {NOTE}" in said


def test_it_is_calibrated_evaluated_and_reported(exported, reproduced, tmp_path):
    """Each command takes the bundle as any other; a new version has no perturbed graph either."""
    bundle, _ = exported
    data = ("--ood", "uniform", "--data-root", reproduced.data)
    second = bundle.parent / "2"
    confgate_train("calibrate", bundle, "--out", second, *data)
    assert set(load_bundle(second).manifest.graphs) == {"forward"}
    for command in ("evaluate", "report"):
        out = tmp_path / command
        run = ("--run", reproduced.run(BRANCH), "--limit", LIMIT, "--device", "cpu")
        confgate_train(command, bundle, *data, *run, "--out", out)
        assert any(out.iterdir())


def test_it_is_served_and_preprocess_is_refused(exported):
    """Requests are answered; one that asks for preprocessing learns that this model has no perturbed graph."""
    bundle, _ = exported
    png = (REPOSITORY / "tests" / "fixtures" / "cifar10.png").read_bytes()
    service = Service(bundle.parents[1]).wait_until_serving()
    try:
        answer = httpx.post(f"{service.url}/v1/predict", content=png)
        assert answer.status_code == 200, answer.text
        assert answer.json()["predictions"][0]["confidence"] is not None
        refused = httpx.post(f"{service.url}/v1/predict?preprocess=true", content=png)
        assert refused.status_code == 400
        assert "preprocess=true needs a perturbed graph, and this model has none" in refused.text
    finally:
        service.stop()


def test_fit_says_it_before_it_trains(tmp_path):
    """A network of torchvision's with such an operator is trained all the same, after a note that names it."""
    root = write_set(tmp_path / "data")
    options = ["--set=data.dataset=colours", "--set=data.validation=20", "--set=data.calibration=30"]
    options += ["--set=network.name=torchvision:resnet18", "--set=optimiser.batch_size=50", "--set=optimiser.epochs=1"]
    done = without_rule(
        "MaxPool", "fit", "vgg13-cifar10", *options, "--data-root", root, "--out", tmp_path / "run", "--device", "cpu"
    )
    assert f"note: {NOTE}" in done.stdout
    assert done.stdout.index(NOTE) < done.stdout.index("epoch")
    assert (tmp_path / "run" / "result.json").is_file()
