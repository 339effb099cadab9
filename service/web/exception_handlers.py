"""Exceptions as answers, for the routes that the framework runs."""

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from service.errors import ClientGone, MalformedRequest, NotReady, RequestError
from service.web.problems import INTERNAL, error_response, problem_response, route_problem
from service.web.request_context import context_of


def add_exception_handlers(api: FastAPI) -> None:
    api.add_exception_handler(RequestError, _request_error)
    api.add_exception_handler(ClientGone, _no_answer)
    api.add_exception_handler(RequestValidationError, _invalid_parameter)
    api.add_exception_handler(HTTPException, _no_such_route)
    api.add_exception_handler(Exception, internal_error)


async def internal_error(request: Request, _: Exception) -> Response:
    """For an unforeseen error. Starlette raises it again, so that it is logged and the connection closed."""
    request_id = context_of(request.scope).request_id
    detail = "an unexpected error; the service's log has it under this request's id"
    return problem_response(INTERNAL, detail, request.url.path, request_id, headers={"Connection": "close"})


def interrupted(scope: Scope) -> Response:
    """For a request that is still in flight when the time to drain is over."""
    context = context_of(scope)
    error = NotReady("the service ended before it had the answer: send the request to another replica")
    context.log["problem"] = error.detail
    return error_response(error, scope["path"], context.request_id)


async def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error, request.url.path, context_of(request.scope).request_id)


class NoAnswer(Response):
    """Sends nothing: the client disconnected."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pass


async def _no_answer(_request: Request, _error: Exception) -> Response:
    return NoAnswer()


async def _invalid_parameter(request: Request, error: Exception) -> Response:
    """FastAPI's own: a part of the path or of the query is wrong."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = " ".join(map(str, first["loc"]))
    return await _request_error(request, MalformedRequest(f"{place}: {first['msg']}"))


async def _no_such_route(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    return route_problem(request.scope, error.status_code, error.headers)
