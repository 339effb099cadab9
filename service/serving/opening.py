"""From a bundle's folder to a model that can be served: verify, open, warm up, then queues, gates and metrics."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from service.cpus import usable_cpus
from service.errors import BundleError
from service.memory import return_freed_memory
from service.model.bundle import Bundle, load_bundle
from service.model.gate import OutputReader, Reading, gates_of, pairs_of
from service.model.manifest import GraphName, Manifest
from service.model.scores import PREPROCESSED_SCORES
from service.model.session import Session, SessionOpener, open_session
from service.serving.batcher import Batcher
from service.serving.budgets import MEGABYTE
from service.serving.gate_overrides import GateOverrides, show
from service.serving.metrics import Metrics, ModelMetrics
from service.serving.on_demand import OnDemandSession, is_open
from service.serving.parallelism import (
    ByLoad,
    Parallelism,
    parallelism_for,
    parallelism_on_cuda,
    pays_by_load,
    seconds_of_one_image,
)
from service.serving.registry import Table
from service.serving.served_model import Model
from service.settings import Settings

log = logging.getLogger("confgate")


class OpenedBundle(NamedTuple):
    """A bundle whose graphs are open and warm; no request is answered with it yet."""

    bundle: Bundle
    sessions: dict[GraphName, Session]
    parallelism: Parallelism
    seconds: float


class BundleOpener:
    """Opens bundles as the settings say, and makes served models of them."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        overrides: GateOverrides | None = None,
        open_session: SessionOpener = open_session,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._overrides = overrides or GateOverrides(None)
        self._open_session = open_session

    def open(self, folder: Path, served: Table, check: Callable[[], None] = lambda: None) -> OpenedBundle | None:
        """In any thread: verifies a bundle, opens its graphs and warms them up; None if `served` has it already.

        `check` is called between the steps, and may raise to end them.
        """
        started = time.perf_counter()
        try:
            bundle = load_bundle(folder)
            manifest = bundle.manifest
            same_version = served.get(manifest.name, {}).get(manifest.version)
            if same_version is not None and same_version.manifest == manifest:
                return None
            parallelism, on_one_thread = self._parallelism(bundle)
            sessions: dict[GraphName, Session] = {}
            # A perturbed graph first: where it is closed again, its memory is free when the other is opened.
            for graph in sorted(manifest.graphs, key="forward".__eq__):
                check()
                sessions[graph] = self._open_graph(bundle, graph, parallelism, served)
            if on_one_thread is not None:
                sessions["forward"] = ByLoad(sessions["forward"], on_one_thread)
        except OSError as error:
            raise BundleError(
                error.filename or folder, "file", f"none ({error.strerror})", "a readable file"
            ) from error
        bundle = bundle.without_files()
        return_freed_memory()
        return OpenedBundle(bundle, sessions, parallelism, time.perf_counter() - started)

    def _parallelism(self, bundle: Bundle) -> tuple[Parallelism, Session | None]:
        """As the settings say; what they leave open follows from how long the network takes for an image.

        With the session on one thread that measured it, if batches that run beside others should use that.
        """
        settings, max_batch = self._settings, bundle.manifest.batch_of(self._settings.max_batch)
        if settings.threads:
            return Parallelism(settings.threads, settings.inference_workers or 1, max_batch), None
        probe = self._session(bundle, "forward", Parallelism(threads=1, workers=1, largest_batch=1), 1)
        if probe.device == "cuda":
            on_cuda = parallelism_on_cuda(max_batch)
            return replace(on_cuda, workers=settings.inference_workers or on_cuda.workers), None
        seconds = seconds_of_one_image(probe, bundle.manifest.input)
        chosen = parallelism_for(seconds, usable_cpus(), max_batch)
        chosen = replace(chosen, workers=settings.inference_workers or chosen.workers)
        return chosen, probe if pays_by_load(chosen, seconds) else None

    def _session(self, bundle: Bundle, graph: GraphName, parallelism: Parallelism, max_batch: int) -> Session:
        limit = self._settings.batch_mb * MEGABYTE // parallelism.workers  # each worker's batch takes its own
        return self._open_session(bundle, graph, self._settings.device, parallelism.threads, max_batch, limit)

    def _open_graph(self, bundle: Bundle, graph: GraphName, parallelism: Parallelism, served: Table) -> Session:
        manifest = bundle.manifest
        session = self._session(bundle, graph, parallelism, parallelism.largest_batch)
        if graph == "forward" or self._stays_open(manifest, served):
            return session
        folder, batch = bundle.folder, session.largest_batch

        def reopen() -> Session:
            started = time.perf_counter()
            found = load_bundle(folder)
            if found.manifest != manifest:
                raise BundleError(folder, "file", "another bundle than was loaded", "no change, or a load")
            session = self._session(found, graph, parallelism, batch)
            del found
            return_freed_memory()
            seconds = round(time.perf_counter() - started, 3)
            told = {"model": manifest.name, "version": manifest.version, "graph": graph, "seconds": seconds}
            log.info("graph opened", extra=told)
            return session

        return OnDemandSession(session, f"{graph} of {manifest.name} {manifest.version}", reopen)

    def _stays_open(self, manifest: Manifest, served: Table) -> bool:
        """Whether a perturbed graph is open from the start: requests for it come certainly, or came until now."""
        versions = served.get(manifest.name, {}).values()
        return (
            self._settings.open_perturbed == "load"
            or manifest.default.score in PREPROCESSED_SCORES
            or any("perturbed" in model.open_graphs for model in versions)
        )

    def make_model(self, opened: OpenedBundle) -> Model:
        """A model that is ready for requests.

        On the event loop, as retiring is, so that metrics with equal labels are never created and removed at once.
        """
        settings, manifest, sessions = self._settings, opened.bundle.manifest, opened.sessions
        metrics = ModelMetrics(self._metrics, manifest)
        queues = {graph: self._queue(opened, graph, metrics) for graph in sessions}
        device, providers = sessions["forward"].device, list(sessions["forward"].providers)
        if settings.device == "auto" and device == "cpu":
            log.warning("no CUDA device is available: serving on the CPU", extra={"providers": providers})
        metrics.loaded(opened.seconds, settings.device, device, opened.parallelism, sessions["forward"].largest_batch)
        log.info(
            "model loaded",
            extra={
                "model": manifest.name,
                "version": manifest.version,
                "device": device,
                "providers": providers,
                "threads": opened.parallelism.threads,
                "workers": opened.parallelism.workers,
                "largest_batch": {graph: session.largest_batch for graph, session in sessions.items()},
                "open": [graph for graph, session in sessions.items() if is_open(session)],
                "seconds": round(opened.seconds, 3),
            },
        )
        if manifest.refuses_nothing:
            log.warning(
                "the default gate refuses no image",
                extra={"model": manifest.name, "version": manifest.version, "policy": manifest.default.policy},
            )
        override = self._overrides.override_of(manifest)
        gates, pairs = gates_of(manifest), pairs_of(manifest)
        model = Model(
            *(opened.bundle, sessions, queues, gates, pairs, metrics, settings.device, device, opened.parallelism),
            override=override,
        )
        show(model)
        return model

    def _queue(self, opened: OpenedBundle, graph: GraphName, metrics: ModelMetrics) -> Batcher[Reading]:
        manifest, session, limit = opened.bundle.manifest, opened.sessions[graph], self._settings.max_queue_images
        read = OutputReader(manifest, graph)
        queue: Batcher[Reading] = Batcher(
            lambda images: read(session.run(images)),
            name=f"{manifest.name}-{manifest.version}-{graph}",
            max_batch=session.largest_batch,
            workers=opened.parallelism.workers,
            max_queue=limit,
            observer=metrics.queue(graph, limit, lambda: queue.images),
        )
        return queue
