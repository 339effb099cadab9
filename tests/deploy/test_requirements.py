"""requirements/: exactly what runs the service, each file of it by its hash."""

import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.shipped import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINNED = re.compile(r"^([\w.-]+)==([^\s;]+)(?: ; [^\\\n]*)? *((?:\\\n +--hash=sha256:[0-9a-f]{64} *)+)$", re.MULTILINE)
each_list = pytest.mark.parametrize("name", ["cpu", "gpu", "build", "tools"])


def locked(name: str) -> dict[str, str]:
    """Version by package."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    rest = re.sub(r"^#.*$", "", PINNED.sub("", text), flags=re.MULTILINE)
    assert rest.strip() == "", "a line is no name, version and hashes"
    return {package: version for package, version, _ in PINNED.findall(text)}


def wanted(name: str) -> list[Requirement]:
    """What pyproject.toml asks for, or for tools a list beside the locked one."""
    project = PYPROJECT["project"]
    if name in ("cpu", "gpu"):
        return [Requirement(line) for line in project["dependencies"] + project["optional-dependencies"][name]]
    lines = (ROOT / "requirements" / f"{name}.in").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines]


@each_list
def test_what_pyproject_asks_for_is_locked(name: str) -> None:
    """Each requirement has a locked version within its range. If this fails: make lock."""
    packages = locked(name)
    for requirement in wanted(name):
        assert requirement.specifier.contains(packages[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("name", ["cpu", "gpu", "build"])
def test_versions_are_those_of_the_constraints(name: str) -> None:
    """Tests run with constraints.txt: what ships has the same versions. If this fails: make lock."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = [line.split("==") for line in lines if not line.startswith("#")]
    assert locked(name).items() <= {canonicalize_name(package): version for package, version in tested}.items()


def test_what_locked_packages_need_is_locked_too() -> None:
    """pip refuses a package without a hash, so that none may be missing. If this fails: make lock."""
    packages = locked("cpu")
    for package in packages:
        try:
            needs = map(Requirement, metadata.requires(package) or ())
        except metadata.PackageNotFoundError:
            continue  # a package of another system
        here = {need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})}
        assert {canonicalize_name(need) for need in here} <= packages.keys(), package


def test_the_service_ships_without_training() -> None:
    """Neither image holds torch, and each holds one ONNX Runtime."""
    for name, runtime, other in (("cpu", "onnxruntime", "onnxruntime-gpu"), ("gpu", "onnxruntime-gpu", "onnxruntime")):
        assert runtime in locked(name)
        assert not {"torch", "torchvision", "onnx", "scipy", other} & locked(name).keys()


def test_the_locked_build_tools_are_those_that_build() -> None:
    """`make lock` reads requirements/build.in, pip the build system: they are the same."""
    assert [str(line) for line in wanted("build")] == PYPROJECT["build-system"]["requires"]


def test_uvicorn_has_an_upper_bound() -> None:
    """The service extends internals of uvicorn: a release that no test has seen is not installed."""
    (allowed,) = (requirement.specifier for requirement in wanted("cpu") if requirement.name == "uvicorn")
    major, minor, _ = locked("cpu")["uvicorn"].split(".")
    assert not allowed.contains(f"{major}.{int(minor) + 1}.0")
