"""The small JSON bodies of operators' requests: bounded in bytes and in time, and checked field by field.

Read by hand, because FastAPI would take in a body of any size before it asks whose it is.
"""

import asyncio
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from service.errors import BodyTimeout, MalformedRequest
from service.settings import Settings
from service.web.bodies import read_whole

MAX_JSON_BYTES = 10_000

Body = TypeVar("Body", bound=BaseModel)


async def read_json(request: Request, kind: type[Body], expected: str, *, optional: bool = False) -> Body:
    """The body as a `kind`. An `optional` body may be empty. `expected` is part of the message where it is wrong."""
    settings: Settings = request.app.state.settings
    length = request.headers.get("content-length")
    try:
        async with asyncio.timeout(settings.body_timeout_ms / 1000):
            text = await read_whole(
                request.scope, request.receive, None if length is None else int(length), MAX_JSON_BYTES
            )
    except TimeoutError:
        raise BodyTimeout("the request body did not arrive whole in time") from None
    try:
        return kind.model_validate_json(b"{}" if optional and not text else text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        message = str(first["msg"]).removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message += f": {str(first['loc'][-1])[:60]!r} is unknown"
        raise MalformedRequest(f"{field + ': ' if field else ''}{message}. Expected {expected}") from error
