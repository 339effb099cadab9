"""The application, composed from its parts by one function: `create_app(settings)`."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.cpus import usable_cpus
from service.errors import StartError
from service.model.headers import ImageLimits
from service.model.session import SessionOpener, open_session
from service.serving.budgets import MEGABYTE, BodyBudget, bodies_megabytes, decoding_megabytes
from service.serving.capture import Capture
from service.serving.decode_pool import DecodePool
from service.serving.decode_workers import DecodeWorkers
from service.serving.gate_overrides import GateOverrides
from service.serving.lifecycle import Lifecycle
from service.serving.loader import Loader
from service.serving.metrics import INFER_ROUTE, PREDICT_ROUTE, Metrics
from service.serving.opening import BundleOpener
from service.serving.override_store import StateFile
from service.serving.predictor import Predictor
from service.serving.registry import Registry
from service.serving.watcher import Watcher
from service.serving.worker_process import WorkerLimits
from service.settings import Settings
from service.web.auth import Auth, Gatekeeper
from service.web.exception_handlers import add_exception_handlers, internal_error, interrupted
from service.web.inference_endpoint import InferenceEndpoint
from service.web.openapi.document import openapi_of
from service.web.openapi.page import add_documentation
from service.web.request_context import RequestContext
from service.web.scrape import Scraper
from service.web.v1 import gates, models
from service.web.v1.predict import PredictEndpoint
from service.web.v2 import metadata, repository
from service.web.v2.infer import INFER_ROUTES, InferEndpoint

log = logging.getLogger("confgate")

MAX_DECODE_THREADS = 8
MAX_DECODE_WORKERS = 4


class Application:
    """The outermost ASGI application, the one that uvicorn is given; `state` holds its parts."""

    def __init__(self, layers: ASGIApp, api: FastAPI) -> None:
        self._layers = layers
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._layers(scope, receive, send)

    @property
    def state(self) -> State:
        return self._api.state

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return self._api.openapi()


def create_app(settings: Settings, open_session: SessionOpener = open_session) -> Application:
    """The whole service; its models are loaded when it starts."""
    lifecycle, metrics, gatekeeper = Lifecycle(), Metrics(), Gatekeeper(settings)
    metrics.in_flight.set_function(lambda: lifecycle.in_flight)
    overrides = GateOverrides(StateFile(settings.state) if settings.state is not None else None)
    registry = Registry()
    opener = BundleOpener(settings, metrics, overrides, open_session)
    loader = Loader(settings, lifecycle, registry, opener, metrics)
    watcher = Watcher(settings.models, settings.watch_seconds, registry, loader)
    workers = _decode_workers(settings)
    capture = Capture(settings, metrics, workers) if settings.capture_dir is not None else None
    decode_pool = DecodePool(settings.decode_threads or min(usable_cpus(), MAX_DECODE_THREADS))
    metrics.usable_cpus.set(usable_cpus())
    metrics.decode_threads.set(decode_pool.size)
    on_refused = capture.offer if capture is not None else None
    limits = ImageLimits(
        settings.max_pixels, settings.max_pixel_passes, tuple(name.upper() for name in settings.accepted_formats)
    )
    predictor = Predictor(decode_pool, workers, limits, on_refused)
    bodies = BodyBudget(bodies_megabytes(settings.bodies_mb) * MEGABYTE)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        log.info("starting", extra={"usable_cpus": usable_cpus(), "decode_threads": decode_pool.size})
        try:
            await asyncio.to_thread(watcher.remember)
            await asyncio.to_thread(loader.load_all)
        except StartError as error:
            lifecycle.start_error = str(error)
            raise
        overrides.report_unserved({(name, v) for name, versions in registry.table.items() for v in versions})
        if capture is not None:
            capture.start()
        lifecycle.ready = True
        async with watcher.watching(settings.watch):
            yield
        lifecycle.ready = False
        if capture is not None:
            await asyncio.to_thread(capture.close)
        if workers is not None:
            await asyncio.to_thread(workers.close)
        # Last what nothing can stop: threads that decode or compute. `service.web.watchdog` limits the wait for them.
        await asyncio.to_thread(decode_pool.shutdown)
        await loader.close()

    api = FastAPI(
        title="confgate",
        version=_version(),
        description="Image classification that says when it does not know.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # FastAPI would look for an OpenTelemetry provider at every request; there is none in this process.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    api.state.settings = settings
    api.state.lifecycle = lifecycle
    api.state.metrics = metrics
    api.state.gatekeeper = gatekeeper
    api.state.registry = registry
    api.state.opener = opener
    api.state.loader = loader
    api.state.overrides = overrides

    infer_endpoint = InferenceEndpoint(INFER_ROUTE, settings, lifecycle, registry, predictor, metrics, bodies)
    infer = InferEndpoint(infer_endpoint, otherwise=api)
    # First, because the router tries its routes in their order.
    api.router.routes[:0] = [Route(path, infer, methods=["POST"], include_in_schema=False) for path in INFER_ROUTES]
    for part in (models, gates, metadata, repository):
        api.include_router(part.router)
    scraper = Scraper(metrics.registry, settings.metrics_cache_ms)
    api.add_api_route("/metrics", scraper.scrape, response_class=PlainTextResponse, tags=["monitoring"])
    add_documentation(api)
    add_exception_handlers(api)
    api.openapi = openapi_of(api, settings)  # type: ignore[method-assign]  # FastAPI's documented way to extend it

    # From the inside out: a request passes these from the last to the first.
    predict_endpoint = InferenceEndpoint(PREDICT_ROUTE, settings, lifecycle, registry, predictor, metrics, bodies)
    layers: ASGIApp = PredictEndpoint(predict_endpoint, otherwise=infer)
    layers = Auth(layers, gatekeeper, metrics)
    layers = ServerErrorMiddleware(layers, handler=internal_error)
    layers = RequestContext(layers, lifecycle, settings.access_log, interrupted)
    return Application(layers, api)


def _decode_workers(settings: Settings) -> DecodeWorkers | None:
    if not DecodeWorkers.supported():
        log.warning("this system cannot fork: large images are decoded in threads, where nothing can stop them")
        return None
    limits = WorkerLimits(decoding_megabytes(settings.decoding_mb) * MEGABYTE, settings.decode_cpu_seconds)
    return DecodeWorkers(settings.decode_workers or min(usable_cpus(), MAX_DECODE_WORKERS), limits)


def _version() -> str:
    try:
        return version("confgate")
    except PackageNotFoundError:
        return "0+source"
