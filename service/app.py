"""The application, put together from its parts by one function: `create_app(settings)`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from service import api, oip
from service.cpus import usable_cpus
from service.decoders import Decoders
from service.documentation import add_documentation
from service.edge import Edge, Lifecycle, context_of
from service.errors import RequestError, StartError
from service.metrics import Metrics
from service.openapi import openapi_of
from service.predictor import Predictor
from service.problems import INTERNAL, Problem, error_response, problem_response
from service.registry import Registry
from service.session import SessionOpener, open_session
from service.settings import Settings

MAX_DECODE_THREADS = 8


def create_app(settings: Settings, open_session: SessionOpener = open_session) -> FastAPI:
    """The whole service; its models are loaded when it starts, and `app.state` holds its parts."""
    lifecycle, metrics = Lifecycle(), Metrics()
    registry = Registry(settings, metrics, open_session)
    decoders = Decoders(settings.decode_threads or min(max(1, usable_cpus() - 1), MAX_DECODE_THREADS))
    predictor = Predictor(decoders, settings.max_pixels)

    endpoint = api.PredictEndpoint(settings, lifecycle, registry, predictor, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await asyncio.to_thread(registry.load_all)
        except StartError as error:
            lifecycle.start_error = str(error)
            raise
        for versions in registry.table.values():
            for model in versions.values():
                endpoint.expect(model.metrics.labels)
        lifecycle.ready = True
        yield
        lifecycle.ready = False
        await asyncio.to_thread(registry.close)
        decoders.shutdown()

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
    app.state.registry = registry
    app.state.predictor = predictor
    # For the answer to other methods; what is posted never comes as far as this.
    app.router.routes.insert(0, Route(api.ROUTE, endpoint, methods=["POST"], include_in_schema=False))
    app.include_router(api.router)
    app.include_router(oip.router)
    app.add_api_route("/metrics", scrape, response_class=PlainTextResponse, tags=["monitoring"])
    add_documentation(app)
    # The one path that has to be fast is taken at the edge: the framework's own layers would cost it as much again.
    app.add_middleware(
        Edge, lifecycle=lifecycle, access_log=settings.access_log, direct={("POST", api.ROUTE): endpoint}
    )
    app.add_exception_handler(RequestError, _refuse)
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
    # This answer passes outside of the edge, which would have put the id on it.
    headers = {"X-Request-Id": request_id, "Connection": "close"}
    return problem_response(INTERNAL, detail, request.url.path, request_id, headers=headers)


def _version() -> str:
    try:
        return version("confgate")
    except PackageNotFoundError:
        return "0+source"
