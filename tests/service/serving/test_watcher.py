"""--watch: folders that change are loaded once they are at rest, and never before they are whole."""

import asyncio
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from service.errors import LoadRefused
from service.model.folders import fingerprint
from service.serving.watcher import Look, Watcher, look
from tests.conftest import Service, make_bundle
from tests.service.conftest import HeldService
from tests.service.serving.reloading import version_of
from tests.service.serving.test_load import wait_for

WATCHING = pytest.mark.parametrize("held_service", [{"watch": True, "watch_seconds": 0.02}], indirect=True)


class Recorder:
    """In the place of registry and repository: what a watcher asks for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.table: Mapping[str, Any] = {"a": {}, "b": {}}
        self.failure: Exception | None = None

    async def load(self, name: str) -> None:
        self.asked.append(f"load {name}")
        if self.failure is not None:
            raise self.failure

    async def unload(self, name: str) -> None:
        self.asked.append(f"unload {name}")


def follow(models: Path, looks: list[Look], failure: Exception | None = None) -> list[list[str]]:
    """What a watcher that knows the first look does after each of the others."""
    recorder = Recorder()
    recorder.failure = failure
    watcher = Watcher(models, 1, recorder, recorder)  # type: ignore[arg-type]
    watcher._last, watcher._settled = looks[0], dict(looks[0])
    done: list[list[str]] = []
    for seen in looks[1:]:
        asyncio.run(watcher.follow(seen))
        done.append(recorder.asked)
        recorder.asked = []
    return done


def state(size: int) -> tuple[tuple[str, int, int, int], ...]:
    return (("1/bundle.json", size, 0, 0),)


A, B, C = state(1), state(2), state(3)


def test_a_change_is_loaded_once_it_is_at_rest(models: Path) -> None:
    """A model that looks the same twice and differs from what is served is loaded, once."""
    looks: list[Look] = [{"a": A}, {"a": A}, {"a": B}, {"a": C}, {"a": C}, {"a": C}, {"a": C}]
    assert follow(models, looks) == [[], [], [], ["load a"], [], []]


def test_what_was_refused_is_tried_again_only_when_it_changes(models: Path) -> None:
    """A refusal, or a mistake of ours, is not repeated until the files change; other models are watched on."""
    looks: list[Look] = [{"a": A}, {"a": B}, {"a": B}, {"a": B}, {"a": B}, {"a": C, "b": A}, {"a": C, "b": A}]
    for failure in (LoadRefused("no"), KeyError("nobody thought of this")):
        assert follow(models, looks, failure) == [[], ["load a"], [], [], [], ["load a", "load b"]]


def test_a_folder_without_bundle_json_is_waited_for(models: Path) -> None:
    """While a version has no bundle.json its model is left as it is."""
    looks: list[Look] = [{"a": A}, {"a": "unfinished"}, {"a": "unfinished"}, {"a": B}, {"a": B}]
    assert follow(models, looks) == [[], [], [], ["load a"]]


def test_a_model_that_is_gone_is_unloaded(models: Path) -> None:
    """A name that is missing in two looks is unloaded; a folder that is missing as a whole is taken for a mount."""
    assert follow(models, [{"a": A, "b": A}, {"b": A}, {"b": A}, {"b": A}]) == [[], ["unload a"], []]
    assert follow(models, [{"a": A}, {}, {}, {}, {"a": A}, {"a": A}]) == [[], [], [], [], []]
    assert follow(models, [{"b": A}, {"b": A, "c": A}, {"b": A}, {"b": A}]) == [[], [], []]


def test_a_look_sees_every_change(models: Path) -> None:
    """Size, time, a replaced file and a new version change the look; hidden folders and loose files do not."""
    bundle = make_bundle(models)
    first = look(models)
    (models / "colours" / ".2-unfinished").mkdir()
    (models / "README.md").touch()
    assert look(models) == first == {"colours": fingerprint(models / "colours")}
    graph, looks = bundle.folder / "model.onnx", [first]
    os.utime(graph, ns=(0, 1))
    looks.append(look(models))
    graph.write_bytes(graph.read_bytes() + b"x")
    os.utime(graph, ns=(0, 1))
    looks.append(look(models))
    shutil.copy2(graph, models / "copy")
    (models / "copy").rename(graph)
    looks.append(look(models))
    make_bundle(models, version=2)
    looks.append(look(models))
    assert len({str(seen) for seen in looks}) == 5
    (models / "colours" / "3").mkdir()
    assert look(models) == {"colours": "unfinished"}
    assert look(models / "nope") == {}


@WATCHING
def test_a_new_folder_is_served_by_itself(held_service: HeldService, models: Path) -> None:
    """A version that appears is served, one that disappears is dropped, and so are whole models."""
    make_bundle(models, version=2)
    wait_for(lambda: version_of(held_service) == 2)
    shutil.rmtree(models / "colours" / "2")
    wait_for(lambda: version_of(held_service) == 1)
    make_bundle(models, "zebra", perturbed=False)
    wait_for(lambda: held_service.client.get("/v2/models/zebra/ready").status_code == 200)
    shutil.rmtree(models / "zebra")
    wait_for(lambda: held_service.client.get("/v2/models/zebra/ready").status_code == 404)
    models.rename(models.with_name("away"))
    threading.Event().wait(0.1)
    assert version_of(held_service) == 1


@WATCHING
def test_a_half_copied_folder_is_never_served(
    held_service: HeldService, models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that arrives in pieces is refused as often as it comes to rest unfinished, and served when whole."""
    source = make_bundle(tmp_path / "elsewhere", version=2).folder
    target = models / "colours" / "2"
    target.mkdir()

    def refusals() -> int:
        return sum(record.message == "a bundle was refused" for record in list(caplog.records))

    threading.Event().wait(0.1)
    assert refusals() == 0
    # The worst order: what makes it look whole comes first, and a file stops in its middle.
    shutil.copy(source / "bundle.json", target)
    wait_for(lambda: refusals() == 1)
    content = (source / "model.onnx").read_bytes()
    (target / "model.onnx").write_bytes(content[: len(content) // 2])
    wait_for(lambda: refusals() == 2)
    # At rest nothing is tried again.
    threading.Event().wait(0.2)
    assert refusals() == 2
    assert version_of(held_service) == 1
    registry = held_service.app.state.metrics.registry
    assert registry.get_sample_value("confgate_model_load_failures_total", {"model": "colours"}) == 2
    shutil.copytree(source, target, dirs_exist_ok=True)
    wait_for(lambda: version_of(held_service) == 2)


def test_the_flag_makes_a_service_watch(models: Path) -> None:
    """With --watch a running service takes up a new version."""
    make_bundle(models)
    watching = Service(models, "--watch", "--watch-seconds", "0.05").wait_until_serving()
    make_bundle(models, version=2)
    watching.wait_for_line('"version":2')
    assert watching.stop() == 0
