"""Loads and unloads models, at the start and while others are served: open in a thread, swap, retire the old version.

Opening a session releases the GIL (docs/architecture.md has the figures), so one thread is enough to keep the event
loop answering.
"""

import asyncio
import logging
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from service.errors import LoadRefused, NotReady, SettingsError, StartError, UnknownModel
from service.memory import return_freed_memory
from service.model.folders import DEFAULT_MODEL, find_bundles, find_names, find_versions, named_default
from service.serving.lifecycle import Lifecycle
from service.serving.metrics import Metrics
from service.serving.opening import BundleOpener, OpenedBundle
from service.serving.registry import Registry
from service.serving.served_model import Model
from service.settings import Settings

log = logging.getLogger("confgate")


class Entry(NamedTuple):
    """One version that is served, or lies in the models folder, or both."""

    name: str
    version: str
    ready: bool
    reason: str


class Loader:
    """Changes what is served, one change at a time."""

    def __init__(
        self, settings: Settings, lifecycle: Lifecycle, registry: Registry, opener: BundleOpener, metrics: Metrics
    ) -> None:
        self._models = settings.models
        self._default_model = settings.default_model
        self._lifecycle = lifecycle
        self._registry = registry
        self._opener = opener
        self._metrics = metrics
        self._one_at_a_time = asyncio.Lock()
        # One thread for all loads: memory that glibc keeps for a thread is used again by the next load.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._retiring: dict[asyncio.Task[None], Model] = {}
        # Why a model's last load was refused, and of which version if one was named.
        self._refusals: dict[str, tuple[int | None, str]] = {}

    def load_all(self) -> None:
        """At the start: loads every bundle under the models folder; the first bad one raises StartError."""
        opened: dict[str, list[OpenedBundle]] = {}
        for folder in find_bundles(self._models):
            one = self._opener.open(folder, {})
            assert one is not None  # nothing is served yet
            opened.setdefault(one.bundle.manifest.name, []).append(one)
        self._registry.default_model = self._default_of(opened)
        for name, versions in opened.items():
            self._registry.swap(name, self._models_of(versions))

    async def load(self, name: str, version: int | None = None) -> None:
        """Serves what is in MODELS/NAME: all its versions, or beside those already served only the one given.

        Whole or not at all: LoadRefused says why a bundle was refused, and what was served before goes on.
        """
        async with self._one_at_a_time:
            try:
                folders = await asyncio.to_thread(self._find, name, version)
                opened = await asyncio.get_running_loop().run_in_executor(self._thread, self._open, folders)
            except StartError as error:
                self._refusals[name] = (version, str(error))
                self._metrics.load_failures.labels(name).inc()
                log.error("a bundle was refused", extra={"model": name, "reason": str(error)})
                raise LoadRefused(f"{error}; what was served before goes on") from error
            self._refuse_while_draining()
            found = {int(folder.name) for folder in folders}
            served = self._registry.table.get(name, {})
            kept = {key: model for key, model in served.items() if key in found or version is not None}
            self._swap(name, opened, kept)
            self._refusals.pop(name, None)

    async def unload(self, name: str, version: int | None = None) -> None:
        """Stops serving a model, or one version of it; requests in flight are answered."""
        async with self._one_at_a_time:
            self._registry.get(name, version)
            served = self._registry.table[name]
            self._swap(name, [], {key: model for key, model in served.items() if version not in (None, key)})

    async def index(self) -> list[Entry]:
        """Every version that is served or could be."""
        found = await asyncio.to_thread(self._look)
        table = self._registry.table
        served = {(name, str(version)) for name, versions in table.items() for version in versions}
        return [
            Entry(name, version, (name, version) in served, self._reason(name, version, (name, version) in served))
            for name, version in sorted(found | served, key=lambda key: (key[0], key[1].zfill(20)))
        ]

    async def close(self) -> None:
        """Stops all queues: those of served versions, and of versions that are being retired."""
        retiring = list(self._retiring.items())
        for task, _ in retiring:
            task.cancel()
        await asyncio.gather(*(task for task, _ in retiring), return_exceptions=True)
        for _, model in retiring:
            await asyncio.to_thread(model.close)
        await asyncio.to_thread(self._registry.close)
        self._thread.shutdown(wait=False)

    def _default_of(self, opened: Collection[str]) -> str | None:
        """The model for requests that name none: the setting's, or that of the models folder's own file."""
        default = self._default_model or named_default(self._models)
        if default is None or default in opened:
            return default
        served = ", ".join(opened)
        if self._default_model is not None:
            raise SettingsError(f"default_model: {default!r} is not allowed: served are {served}")
        raise SettingsError(
            f"{self._models / DEFAULT_MODEL} names {default[:80]!r}, but served are {served}: write one of them into "
            "it, or delete the file"
        )

    def _reason(self, name: str, version: str, served: bool) -> str:
        refused_version, reason = self._refusals.get(name, (None, ""))
        if reason and refused_version in (None, int(version) if version.isdecimal() else None):
            return f"the last load was refused: {reason}"
        return "" if served else "not loaded"

    def _find(self, name: str, version: int | None) -> list[Path]:
        """The folders of a model. The name is compared with those that exist, and never used as a path."""
        try:
            known = {folder.name: folder for folder in find_names(self._models)}
        except OSError as error:
            raise LoadRefused(f"the models folder cannot be read: {error.strerror} ({error.filename})") from error
        if name not in known:
            have = ", ".join(known) or "none"
            raise UnknownModel(f"there is no model {name[:80]!r} in the models folder; there are {have}")
        folders = find_versions(known[name])
        if version is None:
            return folders
        wanted = [folder for folder in folders if int(folder.name) == version]
        if not wanted:
            have = ", ".join(folder.name for folder in folders)
            raise UnknownModel(f"there is no version {version} of {name!r} in the models folder; there are {have}")
        return wanted

    def _open(self, folders: list[Path]) -> list[OpenedBundle]:
        opening = (self._opener.open(folder, self._registry.table, self._refuse_while_draining) for folder in folders)
        return [opened for opened in opening if opened is not None]

    def _models_of(self, opened: list[OpenedBundle]) -> dict[int, Model]:
        return {one.bundle.manifest.version: self._opener.make_model(one) for one in opened}

    def _refuse_while_draining(self) -> None:
        if self._lifecycle.draining:
            raise NotReady("the service is shutting down: nothing is loaded any more")

    def _look(self) -> set[tuple[str, str]]:
        # Folders that are not a version are listed too, so that an operator sees that they are not served.
        try:
            return {
                (name.name, version.name)
                for name in find_names(self._models)
                for version in name.iterdir()
                if version.is_dir() and not version.name.startswith(".")
            }
        except OSError:  # what is served is listed anyway
            return set()

    def _swap(self, name: str, opened: list[OpenedBundle], kept: dict[int, Model]) -> None:
        for model in self._registry.swap(name, {**kept, **self._models_of(opened)}):
            task = asyncio.get_running_loop().create_task(self._retire(model))
            self._retiring[task] = model
            task.add_done_callback(self._retiring.pop)

    async def _retire(self, model: Model) -> None:
        """Waits for the last request of a version that was replaced, then frees its metrics, threads and memory."""
        await model.leases.wait_until_free()
        model.metrics.retired()
        await asyncio.to_thread(model.close)
        await asyncio.to_thread(return_freed_memory)
        manifest = model.manifest
        log.info("model dropped", extra={"model": manifest.name, "version": manifest.version})
