"""Which bundles are served. Readers see one immutable table; loading builds a new one and swaps it in."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from service.errors import BundleError, NotReady, SettingsError, UnknownModel
from service.model.bundle import Bundle, GraphName, load_bundle
from service.model.folders import find_bundles, fingerprint
from service.model.session import Session, SessionOpener, open_session
from service.serving.batcher import Batcher
from service.serving.gate_overrides import Thresholds, show
from service.serving.metrics import Metrics, ModelMetrics
from service.serving.predictor import Model, Reading, gates_of, read_outputs
from service.settings import Settings

log = logging.getLogger("confgate")

Table = Mapping[str, Mapping[int, Model]]


class Opened(NamedTuple):
    """A bundle whose graphs are open and warm; nobody is served with it yet."""

    bundle: Bundle
    sessions: Mapping[GraphName, Session]
    seconds: float


class Registry:
    """The loaded models, by name and version; of a model's versions the highest is the default."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        open_session: SessionOpener = open_session,
        thresholds: Thresholds | None = None,
    ) -> None:
        self._thresholds = thresholds or Thresholds(None)
        self._open_session = open_session
        self._settings = settings
        self._metrics = metrics
        self._table: Table = MappingProxyType({})

    @property
    def table(self) -> Table:
        return self._table

    @property
    def default_name(self) -> str | None:
        """The model that a request means when it names none: the setting's, or the first by name."""
        return self._settings.default_model or next(iter(self._table), None)

    def load_all(self) -> None:
        """Loads every bundle under the models folder; the first bad one raises StartError."""
        opened: dict[str, list[Opened]] = {}
        for folder in find_bundles(self._settings.models):
            one = self.open(folder)
            assert one is not None
            opened.setdefault(one.bundle.manifest.name, []).append(one)
        default = self._settings.default_model
        if default is not None and default not in opened:
            raise SettingsError(f"default_model: {default!r} is not allowed: served are {', '.join(opened)}")
        for name, versions in opened.items():
            self.serve(name, versions)

    def get(self, name: str | None, version: int | None) -> Model:
        """The model a request asks for."""
        table = self._table
        name = name or self.default_name
        if name is None:
            raise NotReady("no model is loaded")
        versions = table.get(name)
        if versions is None:
            raise UnknownModel(f"model {name[:80]!r} is not loaded; served are {', '.join(table) or 'none'}")
        if version is None:
            return versions[max(versions)]
        if version not in versions:
            have = ", ".join(map(str, versions))
            raise UnknownModel(f"version {version} of model {name!r} is not loaded; served are {have}")
        return versions[version]

    def open(self, folder: Path, go_on: Callable[[], None] = lambda: None) -> Opened | None:
        """In any thread: verifies a bundle, opens its graphs and warms them up; None if it is served already.

        `go_on` is called between the steps, and may raise to end them.
        """
        started, settings = time.perf_counter(), self._settings
        try:
            before = fingerprint(folder)
            bundle = load_bundle(folder)
            manifest = bundle.manifest
            served = self._table.get(manifest.name, {}).get(manifest.version)
            if served is not None and served.manifest == manifest:
                return None
            sessions: dict[GraphName, Session] = {}
            for graph in manifest.graphs:
                go_on()
                sessions[graph] = self._open_session(
                    bundle, graph, settings.device, settings.threads, settings.max_batch
                )
            if fingerprint(folder) != before:
                # What was hashed need not be what was opened.
                raise BundleError(folder, "files", "some that changed while they were loaded", "files at rest")
        except OSError as error:
            raise BundleError(
                error.filename or folder, "file", f"none ({error.strerror})", "a readable file"
            ) from error
        return Opened(bundle, sessions, time.perf_counter() - started)

    def serve(self, name: str, opened: Sequence[Opened], kept: Mapping[int, Model] | None = None) -> list[Model]:
        """Swaps a model's versions: from now on they are `opened` and `kept`. Returns those that are out.

        On the event loop, as retiring is, so that metrics of equal labels are never made and removed at once.
        """
        before = self._table.get(name, {})
        fresh = {one.bundle.manifest.version: self._model(one) for one in opened}
        versions = dict(sorted({**(kept or {}), **fresh}.items()))
        table = {**self._table, name: MappingProxyType(versions)}
        self._table = MappingProxyType({key: table[key] for key in sorted(table) if table[key]})
        return [model for model in before.values() if versions.get(model.manifest.version) is not model]

    def close(self) -> None:
        table, self._table = self._table, MappingProxyType({})
        for versions in table.values():
            for model in versions.values():
                model.close()

    def _model(self, opened: Opened) -> Model:
        settings, manifest, sessions = self._settings, opened.bundle.manifest, opened.sessions
        metrics = ModelMetrics(self._metrics, manifest)
        queues = {graph: self._queue(manifest.name, opened, graph, metrics) for graph in sessions}
        device, providers = sessions["forward"].device, list(sessions["forward"].providers)
        if settings.device == "auto" and device == "cpu":
            log.warning("no CUDA device could be had: serving on the CPU", extra={"providers": providers})
        metrics.loaded(opened.seconds, settings.device, device)
        log.info(
            "model loaded",
            extra={
                "model": manifest.name,
                "version": manifest.version,
                "device": device,
                "providers": providers,
                "seconds": round(opened.seconds, 3),
            },
        )
        override = self._thresholds.override_of(manifest)
        model = Model(opened.bundle, queues, gates_of(manifest), metrics, settings.device, device, override=override)
        show(model)
        return model

    def _queue(self, name: str, opened: Opened, graph: GraphName, metrics: ModelMetrics) -> Batcher[Reading]:
        manifest, session, limit = opened.bundle.manifest, opened.sessions[graph], self._settings.max_queue_images
        queue: Batcher[Reading] = Batcher(
            lambda images: read_outputs(manifest, session.run(images)),
            name=f"{name}-{manifest.version}-{graph}",
            max_batch=self._settings.max_batch,
            max_queue=limit,
            observer=metrics.queue(graph, limit, lambda: queue.images),
        )
        return queue
