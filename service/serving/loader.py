"""Loading and unloading while others are served: verify and warm up in a thread, then swap, then let the old one end.

Opening a session lets go of the interpreter lock (docs/architecture.md has the figures), so that a thread is enough
to keep the event loop answering.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from service.errors import LoadRefused, NotReady, StartError, UnknownModel
from service.model.folders import find_names, find_versions
from service.serving.metrics import Metrics
from service.serving.predictor import Model
from service.serving.registry import Opened, Registry
from service.settings import Settings
from service.web.request_context import Lifecycle

log = logging.getLogger("confgate")


class Entry(NamedTuple):
    """One version that is served, or lies in the models folder, or both."""

    name: str
    version: str
    ready: bool
    reason: str


class Repository:
    """Changes what is served, one change at a time."""

    def __init__(self, settings: Settings, lifecycle: Lifecycle, registry: Registry, metrics: Metrics) -> None:
        self._models = settings.models
        self._lifecycle = lifecycle
        self._registry = registry
        self._metrics = metrics
        self._one_at_a_time = asyncio.Lock()
        # One thread for all loads: memory that glibc keeps for a thread is used again by the next load.
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._retiring: dict[asyncio.Task[None], Model] = {}
        # Why a model's last load was refused, and of which version if one was asked for.
        self._refusals: dict[str, tuple[int | None, str]] = {}

    async def load(self, name: str, version: int | None = None) -> None:
        """Serves what is in MODELS/NAME: all its versions, or beside those already served only the one given.

        Whole or not at all: LoadRefused says why a bundle was refused, and what was served before goes on.
        """
        async with self._one_at_a_time:
            try:
                folders = await asyncio.to_thread(self._find, name, version)
                opened = await asyncio.get_running_loop().run_in_executor(self._loader, self._open, folders)
            except StartError as error:
                self._refusals[name] = (version, str(error))
                self._metrics.load_failures.labels(name).inc()
                log.error("a bundle was refused", extra={"model": name, "reason": str(error)})
                raise LoadRefused(f"{error}; what was served before goes on") from error
            self._go_on()
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
        """Ends all queues: those of served versions, and of those that were on their way out."""
        retiring = list(self._retiring.items())
        for task, _ in retiring:
            task.cancel()
        await asyncio.gather(*(task for task, _ in retiring), return_exceptions=True)
        for _, model in retiring:
            await asyncio.to_thread(model.close)
        await asyncio.to_thread(self._registry.close)
        self._loader.shutdown(wait=False)

    def _reason(self, name: str, version: str, served: bool) -> str:
        refused_version, reason = self._refusals.get(name, (None, ""))
        if reason and refused_version in (None, int(version) if version.isdecimal() else None):
            return f"the last load was refused: {reason}"
        return "" if served else "not loaded"

    def _find(self, name: str, version: int | None) -> list[Path]:
        """The folders of a model; a name that is no plain folder name never reaches the file system."""
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

    def _open(self, folders: list[Path]) -> list[Opened]:
        return [opened for folder in folders if (opened := self._registry.open(folder, self._go_on)) is not None]

    def _go_on(self) -> None:
        if self._lifecycle.draining:
            raise NotReady("the service is shutting down: nothing is loaded any more")

    def _look(self) -> set[tuple[str, str]]:
        # Also folders that are no version: that they are not served should be seen.
        try:
            return {
                (name.name, version.name)
                for name in find_names(self._models)
                for version in name.iterdir()
                if version.is_dir() and not version.name.startswith(".")
            }
        except OSError:  # what is served is shown all the same
            return set()

    def _swap(self, name: str, opened: list[Opened], kept: dict[int, Model]) -> None:
        for model in self._registry.serve(name, opened, kept):
            task = asyncio.get_running_loop().create_task(self._retire(model))
            self._retiring[task] = model
            task.add_done_callback(self._retiring.pop)

    async def _retire(self, model: Model) -> None:
        """The last request that found this version ends; then its metrics, its threads and its memory go."""
        await model.leases.wait_until_free()
        model.metrics.retired()
        await asyncio.to_thread(model.close)
        manifest = model.manifest
        log.info("model dropped", extra={"model": manifest.name, "version": manifest.version})
