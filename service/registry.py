"""Which bundles are served. Readers see one immutable table; loading builds a new one and swaps it in."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from service.batcher import Batcher
from service.bundle import Bundle, GraphName, load_bundle
from service.errors import BundleError, NotReady, SettingsError, StartError, UnknownModel
from service.metrics import Metrics, ModelMetrics
from service.predictor import Model, Reading, gates_of, read_outputs
from service.session import Session, SessionOpener, open_session
from service.settings import Settings
from service.thresholds import Thresholds, show

log = logging.getLogger("confgate")

Table = Mapping[str, Mapping[int, Model]]


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
        table: dict[str, dict[int, Model]] = {}
        try:
            for folder in find_bundles(self._settings.models):
                bundle = load_bundle(folder)
                model = self._open(bundle)
                table.setdefault(bundle.manifest.name, {})[bundle.manifest.version] = model
        except StartError:
            _close(table)
            raise
        default = self._settings.default_model
        if default is not None and default not in table:
            _close(table)
            raise SettingsError(f"default_model: {default!r} is not allowed: served are {', '.join(table)}")
        self._table = MappingProxyType(table)

    def get(self, name: str | None, version: int | None) -> Model:
        """The model a request asks for."""
        table = self._table
        if not table:
            raise NotReady("no model is loaded yet")
        name = name or self._settings.default_model or next(iter(table))
        versions = table.get(name)
        if versions is None:
            raise UnknownModel(f"model {name!r} is not loaded; served are {', '.join(table)}")
        if version is None:
            return versions[max(versions)]
        if version not in versions:
            have = ", ".join(map(str, versions))
            raise UnknownModel(f"version {version} of model {name!r} is not loaded; served are {have}")
        return versions[version]

    def close(self) -> None:
        table, self._table = self._table, MappingProxyType({})
        _close(table)

    def _open(self, bundle: Bundle) -> Model:
        started = time.perf_counter()
        settings, manifest = self._settings, bundle.manifest
        metrics = ModelMetrics(self._metrics, manifest)
        sessions = {
            graph: self._open_session(bundle, graph, settings.device, settings.threads, settings.max_batch)
            for graph in manifest.graphs
        }
        queues = {graph: self._open_queue(bundle, graph, session, metrics) for graph, session in sessions.items()}
        device, providers = sessions["forward"].device, list(sessions["forward"].providers)
        if settings.device == "auto" and device == "cpu":
            log.warning("no CUDA device could be had: serving on the CPU", extra={"providers": providers})
        seconds = time.perf_counter() - started
        metrics.loaded(seconds, settings.device, device)
        log.info(
            "model loaded",
            extra={
                "model": manifest.name,
                "version": manifest.version,
                "device": device,
                "providers": providers,
                "seconds": round(seconds, 3),
            },
        )
        override = self._thresholds.override_of(manifest)
        model = Model(bundle, queues, gates_of(manifest), metrics, settings.device, device, override=override)
        show(model)
        return model

    def _open_queue(
        self, bundle: Bundle, graph: GraphName, session: Session, metrics: ModelMetrics
    ) -> Batcher[Reading]:
        manifest, limit = bundle.manifest, self._settings.max_queue_images
        queue: Batcher[Reading] = Batcher(
            lambda images: read_outputs(manifest, session.run(images)),
            name=f"{manifest.name}-{manifest.version}-{graph}",
            max_batch=self._settings.max_batch,
            max_queue=limit,
            observer=metrics.queue(graph, limit, lambda: queue.images),
        )
        return queue


def find_bundles(models: Path) -> list[Path]:
    """Every MODELS/NAME/VERSION, versions in rising order. Hidden folders are bundles still being written."""
    if not models.is_dir():
        raise SettingsError(f"models: '{models}' is not allowed: there is no such folder")
    folders = []
    for name in sorted(entry for entry in models.iterdir() if entry.is_dir() and not entry.name.startswith(".")):
        versions = [entry for entry in name.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
        for version in versions:
            if not version.name.isdecimal():
                raise BundleError(version, "version", repr(version.name), "a folder named by a whole number")
        folders += sorted(versions, key=lambda folder: int(folder.name))
    if not folders:
        raise SettingsError(f"models: '{models}' is not allowed: it holds no NAME/VERSION with a bundle.json")
    return folders


def _close(table: Table) -> None:
    for versions in table.values():
        for model in versions.values():
            for queue in model.queues.values():
                queue.close()
