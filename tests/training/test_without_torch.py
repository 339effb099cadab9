"""A finished bundle is calibrated, evaluated and drawn where torch is not installed."""

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

from tests.training.command_line import ENVIRONMENT
from tests.training.conftest import LIMIT

PACKAGES = ("training.calibration", "training.metrics", "training.evaluation", "training.report")
BRANCH = "compact-cifar10"
# As if neither were installed. An entry of None in sys.modules would not do: libraries take it for an imported torch.
WITHOUT_TORCH = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
from training.cli.main import main

main()
"""


def modules_of(package: str) -> list[str]:
    found = importlib.import_module(package)
    return [module.name for module in pkgutil.walk_packages(found.__path__, f"{package}.")]


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def test_no_module_that_works_on_finished_bundles_imports_torch() -> None:
    """Imported one after the other in a new process, none of them loads torch or torchvision, directly or not."""
    modules = [name for package in PACKAGES for name in modules_of(package)]
    modules += ["training.graphs.run", "training.bundles.next_version", "training.cli.main"]
    assert len(modules) > 20
    done = run_python(
        "import importlib, json, sys\n"
        "loaded = {}\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    loaded[name] = sorted({'torch', 'torchvision'} & set(sys.modules))\n"
        "print(json.dumps(loaded))",
        *modules,
    )
    assert done.returncode == 0, done.stderr
    assert {name: torch for name, torch in json.loads(done.stdout).items() if torch} == {}


@pytest.mark.parametrize("command", ["calibrate", "evaluate", "report"])
def test_a_finished_bundle_needs_no_torch(reproduced, tmp_path, command) -> None:
    """The command succeeds where importing torch fails, also for the scores of the perturbed graph."""
    arguments: list[object] = [command, reproduced.bundle(BRANCH), "--ood", "uniform", "--data-root", reproduced.data]
    if command != "calibrate":
        arguments += ["--run", reproduced.run(BRANCH), "--limit", LIMIT, "--device", "cpu", "--out", tmp_path]
    done = run_python(WITHOUT_TORCH, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"calibrate": "confidence_preprocessed", "evaluate": "evaluation.json", "report": "index.html"}[
        command
    ] in done.stdout


def test_torch_is_really_missing_there(reproduced, tmp_path) -> None:
    """`export` needs torch, so it fails in the same process: the tests above show something."""
    arguments = ("export", reproduced.run(BRANCH), "--out", tmp_path / "m" / "1", "--data-root", reproduced.data)
    done = run_python(WITHOUT_TORCH, *arguments)
    assert done.returncode != 0
    assert "No module named 'torch'" in done.stderr
