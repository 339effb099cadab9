"""The application, put together from its parts by one function: `create_app(settings)`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from service.cpus import usable_cpus
from service.errors import MalformedRequest, RequestError, StartError
from service.model.session import SessionOpener, open_session
from service.serving.capture import Capture
from service.serving.decode_pool import Decoders
from service.serving.gate_overrides import Thresholds
from service.serving.loader import Repository
from service.serving.metrics import PREDICT_ROUTE, Metrics
from service.serving.override_store import StateFile
from service.serving.predictor import Predictor
from service.serving.registry import Registry
from service.serving.watcher import Watcher
from service.settings import Settings
from service.web.auth import Guard
from service.web.keys import Gatekeeper
from service.web.openapi.document import openapi_of
from service.web.openapi.page import add_documentation
from service.web.problems import INTERNAL, Problem, error_response, problem_response
from service.web.request_context import Edge, Lifecycle, context_of
from service.web.v1 import gates as admin
from service.web.v1 import predict as api
from service.web.v2 import infer as oip
from service.web.v2 import repository as oip_repository

MAX_DECODE_THREADS = 8


def create_app(settings: Settings, open_session: SessionOpener = open_session) -> FastAPI:
    """The whole service; its models are loaded when it starts, and `app.state` holds its parts."""
    lifecycle, metrics, gatekeeper = Lifecycle(), Metrics(), Gatekeeper(settings)
    thresholds = Thresholds(StateFile(settings.state) if settings.state is not None else None)
    metrics.in_flight.set_function(lambda: lifecycle.in_flight)
    registry = Registry(settings, metrics, open_session, thresholds)
    decoders = Decoders(settings.decode_threads or min(max(1, usable_cpus() - 1), MAX_DECODE_THREADS))
    capture = Capture(settings, metrics) if settings.capture_dir is not None else None
    on_refused = capture.offer if capture is not None else None
    predictor = Predictor(decoders, settings.max_pixels, lifecycle.solitude, on_refused)

    predict = api.PredictEndpoint(settings, lifecycle, registry, predictor, metrics)
    infer = oip.InferEndpoint(settings, lifecycle, registry, predictor, metrics)
    repository = Repository(settings, lifecycle, registry, metrics)
    watcher = Watcher(settings.models, settings.watch_seconds, registry, repository)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await asyncio.to_thread(watcher.remember)
            await asyncio.to_thread(registry.load_all)
        except StartError as error:
            lifecycle.start_error = str(error)
            raise
        thresholds.report_unserved({(name, v) for name, versions in registry.table.items() for v in versions})
        if capture is not None:
            capture.start()
        lifecycle.ready = True
        async with watcher.watching(settings.watch):
            yield
        lifecycle.ready = False
        await repository.close()
        decoders.shutdown()
        if capture is not None:
            await asyncio.to_thread(capture.close)

    app = FastAPI(
        title="confgate",
        version=_version(),
        description="Image classification that says when it does not know.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # FastAPI would look for an OpenTelemetry provider at every request; there is none in this process.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.settings = settings
    app.state.lifecycle = lifecycle
    app.state.metrics = metrics
    app.state.gatekeeper = gatekeeper
    app.state.registry = registry
    app.state.thresholds = thresholds
    app.state.predictor = predictor
    app.state.repository = repository
    # First, for the router tries its routes in their order.
    app.router.routes[:0] = [
        Route(PREDICT_ROUTE, predict, methods=["POST"], include_in_schema=False),
        *(Route(path, infer, methods=["POST"], include_in_schema=False) for path in oip.INFER_ROUTES),
    ]
    app.include_router(api.router)
    app.include_router(admin.router)
    app.include_router(oip.router)
    app.include_router(oip_repository.router)
    app.add_api_route("/metrics", scrape, response_class=PlainTextResponse, tags=["monitoring"])
    add_documentation(app)
    app.add_middleware(Guard, gatekeeper=gatekeeper, metrics=metrics)
    # The one path that has to be fast is taken at the edge, through the same guard: the framework's own layers would
    # cost it as much again.
    guarded = ServerErrorMiddleware(Guard(predict, gatekeeper, metrics), handler=_apologise)
    # Around the whole application, not a middleware of it: this is what the server is given.
    app.state.edge = Edge(app, lifecycle, settings.access_log, {("POST", PREDICT_ROUTE): guarded})
    app.add_exception_handler(RequestError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_invalid)
    app.add_exception_handler(HTTPException, _refuse_route)
    app.add_exception_handler(Exception, _apologise)
    app.openapi = openapi_of(app, settings)  # type: ignore[method-assign]  # FastAPI's documented way to extend it
    return app


def scrape(request: Request) -> Response:
    """Everything Prometheus is told, in its text format."""
    # Not async: Starlette runs it in a thread, so that a scrape does not hold up the event loop.
    metrics: Metrics = request.app.state.metrics
    return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error, request.url.path, context_of(request.scope).request_id)


async def _refuse_invalid(request: Request, error: Exception) -> Response:
    """FastAPI's own: a part of the path or of the query is not what it must be."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = " ".join(map(str, first["loc"]))
    return await _refuse(request, MalformedRequest(f"{place}: {first['msg']}"))


async def _refuse_route(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    problem = Problem(error.status_code, phrase.lower().replace(" ", "-"), phrase)
    detail = f"{request.method} {request.url.path}: {phrase.lower()}; /docs lists what there is"
    return problem_response(
        problem, detail, request.url.path, context_of(request.scope).request_id, headers=dict(error.headers or {})
    )


async def _apologise(request: Request, _: Exception) -> Response:
    """For what nobody foresaw. Starlette raises the error again, so that it is logged and the connection closed."""
    request_id = context_of(request.scope).request_id
    detail = "an unexpected error; the service's log has it under this request's id"
    return problem_response(INTERNAL, detail, request.url.path, request_id, headers={"Connection": "close"})


def _version() -> str:
    try:
        return version("confgate")
    except PackageNotFoundError:
        return "0+source"
