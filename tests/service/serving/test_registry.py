"""Which bundles are loaded, and what stops that."""

from pathlib import Path

import pytest

from service.errors import BundleError, NotReady, SettingsError, StartError, UnknownModel
from service.model.folders import find_bundles
from service.serving.lifecycle import Lifecycle
from service.serving.loader import Loader
from service.serving.metrics import Metrics
from service.serving.opening import BundleOpener
from service.serving.registry import Registry
from service.settings import Settings
from tests.conftest import BundleFolder, graph_bytes, make_bundle


def load(models: Path, default_model: str | None = None) -> Registry:
    registry = Registry()
    loader_of(registry, Settings(models=models, device="cpu", default_model=default_model)).load_all()
    return registry


def loader_of(registry: Registry, settings: Settings) -> Loader:
    metrics = Metrics()
    return Loader(settings, Lifecycle(), registry, BundleOpener(settings, metrics), metrics)


def test_versions_are_found_in_the_order_of_numbers(models: Path) -> None:
    """Version 10 comes after version 9, and is the default."""
    for version in (10, 9):
        make_bundle(models, version=version, perturbed=False)
    assert [folder.name for folder in find_bundles(models)] == ["9", "10"]
    registry = load(models)
    assert registry.get(None, None).manifest.version == 10
    assert registry.get("colours", 9).manifest.version == 9
    registry.close()


def test_unfinished_and_foreign_entries_are_left_alone(models: Path, bundle_folder: BundleFolder) -> None:
    """Hidden folders and loose files under models/ are no bundles."""
    (models / "README.md").touch()
    (models / "colours" / ".2-unfinished").mkdir()
    (models / ".cache").mkdir()
    assert find_bundles(models) == [bundle_folder.folder]


def test_a_version_folder_must_be_a_number(models: Path, bundle_folder: BundleFolder) -> None:
    """A folder such as models/colours/latest is refused by name."""
    bundle_folder.folder.rename(bundle_folder.folder.with_name("latest"))
    with pytest.raises(BundleError, match="latest"):
        find_bundles(models)


def test_a_folder_without_bundles_is_refused(models: Path) -> None:
    """A models folder that is empty or missing is a mistake that is said, not an empty service."""
    with pytest.raises(SettingsError, match="holds no NAME/VERSION"):
        load(models)
    with pytest.raises(SettingsError, match="no such folder"):
        load(models / "nope")


def test_an_unknown_default_model_is_refused(models: Path, bundle_folder: BundleFolder) -> None:
    """A default model that is not there is refused, and those that are there are named."""
    assert bundle_folder.folder.is_dir()
    with pytest.raises(SettingsError, match="served are colours"):
        load(models, "nope")


def test_the_models_folder_names_its_default(models: Path) -> None:
    """The file default_model says who answers when none is named; the setting of the same name goes before it."""
    make_bundle(models, "a", perturbed=False)
    make_bundle(models, "b", perturbed=False)
    (models / "default_model").write_text("b\n")
    assert load(models).get(None, None).manifest.name == "b"
    assert load(models, "a").get(None, None).manifest.name == "a"
    for written, complaint in (
        ("c", "names 'c', but served are a, b"),
        (" \n", "is empty"),
        ("\udcff", "cannot be read"),
    ):
        (models / "default_model").write_bytes(written.encode(errors="surrogateescape"))
        with pytest.raises(SettingsError, match=complaint):
            load(models)


def test_one_bad_bundle_refuses_all(models: Path, bundle_folder: BundleFolder) -> None:
    """A bad bundle beside a good one stops the load, so that nobody serves half of what was meant."""
    bad = make_bundle(models, version=2)
    bad.replace_graph("forward", graph_bytes(side=9))
    registry = Registry()
    loader = loader_of(registry, Settings(models=models, device="cpu"))
    with pytest.raises(StartError, match=r"2/model\.onnx: input image: found tensor\(uint8\) \[N, 9, 9, 3\]"):
        loader.load_all()
    assert not registry.table
    with pytest.raises(NotReady):
        registry.get(None, None)
    assert bundle_folder.folder.is_dir()


def test_requests_find_their_model(models: Path) -> None:
    """A request that names no model gets the first by name, or the default; unknown ones are not found."""
    make_bundle(models, "a", perturbed=False)
    make_bundle(models, "b", perturbed=False)
    registry = load(models)
    assert registry.get(None, None).manifest.name == registry.default_name == "a"
    with pytest.raises(UnknownModel, match="'c' is not loaded; served are a, b"):
        registry.get("c", None)
    with pytest.raises(UnknownModel, match="version 2"):
        registry.get("a", 2)
    registry.close()
    registry = load(models, "b")
    assert registry.get(None, None).manifest.name == "b"
    registry.close()
