"""`--watch`: loads a model when its folder under models/ has changed and is at rest again.

The folder is polled every few seconds, because the file systems that containers mount send no events. A model whose
files are the same in two polls is at rest; then it is loaded, which verifies every hash. A bundle that was refused is
tried again when its files change.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from service.errors import RequestError
from service.model.folders import Fingerprint, find_names, fingerprint, is_unfinished
from service.serving.loader import Loader
from service.serving.registry import Registry

log = logging.getLogger("confgate")

State = Fingerprint | Literal["gone", "unfinished"]
Look = Mapping[str, State]


class Watcher:
    def __init__(self, models: Path, seconds: float, registry: Registry, loader: Loader) -> None:
        self._models = models
        self._seconds = seconds
        self._registry = registry
        self._loader = loader
        self._last: Look = {}
        self._settled: dict[str, State] = {}

    def remember(self) -> None:
        """At the start, before everything is loaded: what is there now needs no second load."""
        self._last = look(self._models)
        self._settled = dict(self._last)

    @asynccontextmanager
    async def watching(self, wanted: bool) -> AsyncIterator[None]:
        """Polls while the context lasts."""
        task = asyncio.get_running_loop().create_task(self._look_for_ever()) if wanted else None
        yield
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            await self.follow(await asyncio.to_thread(look, self._models))

    async def follow(self, now: Look) -> None:
        """Loads or unloads each model that has changed and is at rest."""
        last, self._last = self._last, now
        if not now:
            # A mount that is missing for a moment looks like this: unloading everything would be wrong.
            if last:
                log.warning(
                    "the models folder is gone or empty: what is served goes on", extra={"models": str(self._models)}
                )
            return
        for name in sorted({*now, *self._settled}):
            state = now.get(name, "gone")
            at_rest = state == last.get(name, "gone")
            if at_rest and state != "unfinished" and state != self._settled.get(name, "gone"):
                self._settled[name] = state
                await self._change(name, state)

    async def _change(self, name: str, state: State) -> None:
        log.info("a model's folder has changed", extra={"model": name})
        if state != "gone":
            change = self._loader.load(name)
        elif name in self._registry.table:
            change = self._loader.unload(name)
        else:
            return
        # An error with one model must not end the watching of the others.
        (outcome,) = await asyncio.gather(change, return_exceptions=True)
        # What was refused is counted and logged by the loader already.
        if isinstance(outcome, Exception) and not isinstance(outcome, RequestError):
            log.error("a changed model could not be loaded", exc_info=outcome, extra={"model": name})


def look(models: Path) -> Look:
    """The models folder as it stands; empty if it cannot be read."""
    try:
        return {name.name: "unfinished" if is_unfinished(name) else fingerprint(name) for name in find_names(models)}
    except OSError:
        return {}
