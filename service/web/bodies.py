"""Request bodies → encoded images, with every limit enforced while the bytes come in.

A body is one raw image, multipart/form-data with files, or JSON {"images": [base64 or data URL, …]}.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope

from service.errors import ClientGone, InvalidImage, MalformedRequest, RequestError, TooLarge, UnsupportedType
from service.model.images import MEDIA_TYPES
from service.web.forms import read_files

# What curl --data-binary says of every body, and browsers of a form's fields.
FORM_FIELDS = "application/x-www-form-urlencoded"
# These say nothing about the body: its own bytes do.
UNTYPED = frozenset({"", "application/octet-stream", FORM_FIELDS})
RAW_TYPES = MEDIA_TYPES | UNTYPED
SNIFFED = 64
# A client that is still sending does not read its answer. Up to this many times the limit, the rest of a body that is
# too large is read and discarded, so that the client gets the answer instead of a broken connection.
DISCARDED = 4
EXPECTED = '{"images": [base64, …]}'
SHOWN = 60
SPARE_VALUES = 1_000  # up to this many values too many are still parsed, for an error that says what is wrong
# Parsing up to this many bytes takes less time than handing them to a thread.
SMALL_JSON = 50_000


@dataclass(frozen=True, slots=True)
class BodyLimits:
    max_bytes: int
    max_images: int


async def read_images(
    scope: Scope, receive: Receive, content_type: str, content_length: int | None, limits: BodyLimits
) -> tuple[list[bytes | RequestError], list[str | None] | None]:
    """The encoded images of a request, and of a form the names of its files.

    The place of an item that is not base64 is taken by its error.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in RAW_TYPES or media_type == "application/json":
        body = await read_whole(scope, receive, content_length, limits.max_bytes)
        if media_type == "application/json" or (media_type in UNTYPED and _is_object(body)):
            if len(body) < SMALL_JSON:
                return _images_of_json(body, limits.max_images), None
            return await asyncio.to_thread(_images_of_json, body, limits.max_images), None
        if not body:
            raise MalformedRequest("the body is empty: send the image file as the body (curl --data-binary @FILE)")
        if media_type == FORM_FIELDS and _is_text(body):
            raise UnsupportedType(
                f"the fields of a form ({FORM_FIELDS}) are not served: send the image file as the body "
                "(curl --data-binary @FILE), or files as multipart/form-data (curl -F image=@FILE)"
            )
        return [body], None
    if media_type != "multipart/form-data":
        raise UnsupportedType(
            f"Content-Type {media_type!r} is not served: send image/png, image/jpeg, image/webp or "
            "image/gif with the file as body, or multipart/form-data, or application/json"
        )
    files = await read_files(stream(scope, receive, content_length, limits.max_bytes), content_type, limits.max_images)
    return [bytes(file.content) for file in files], [file.name for file in files]


def _is_object(body: bytes) -> bool:
    """Whether it begins as a JSON object, which no image file does."""
    return body[:SNIFFED].lstrip()[:1] == b"{"


def _is_text(body: bytes) -> bool:
    """Whether it begins with printable characters only, as no image file does."""
    start = body[:SNIFFED]
    return start.isascii() and start.decode().isprintable()


async def read_whole(scope: Scope, receive: Receive, content_length: int | None, max_bytes: int) -> bytes:
    """A body in one piece, or TooLarge."""
    if content_length is not None and content_length > max_bytes:
        _refuse_unsent(scope, max_bytes)
    first = await receive()
    body: bytes = first.get("body", b"")
    if first["type"] == "http.request" and not first.get("more_body", False) and len(body) <= max_bytes:
        return body  # the usual case

    messages = [first]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return b"".join([chunk async for chunk in stream(scope, receive_again, content_length, max_bytes)])


async def stream(scope: Scope, receive: Receive, content_length: int | None, max_bytes: int) -> AsyncIterator[bytes]:
    """The chunks of a body, and TooLarge as soon as they are too many."""
    taken, allowed = 0, max_bytes
    if content_length is not None and content_length > max_bytes:
        _refuse_unsent(scope, max_bytes)
        if content_length > DISCARDED * max_bytes:
            raise _too_many_bytes(max_bytes)
        allowed = -1
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        taken += len(chunk)
        if taken <= allowed:
            yield chunk
        if taken > DISCARDED * max_bytes:
            raise _too_many_bytes(max_bytes)
        if not message.get("more_body", False):
            break
    if taken > allowed:
        raise _too_many_bytes(max_bytes)


def _refuse_unsent(scope: Scope, max_bytes: int) -> None:
    """TooLarge where the client waits for a 100 before it sends: the first `receive()` would make uvicorn send that."""
    if any(name == b"expect" and value.lower() == b"100-continue" for name, value in scope["headers"]):
        raise _too_many_bytes(max_bytes)


def _too_many_bytes(max_bytes: int) -> TooLarge:
    return TooLarge(f"the body has more than the {max_bytes} bytes that are allowed")


def _images_of_json(body: bytes, max_images: int) -> list[bytes | RequestError]:
    # Counted before it is parsed: nested lists would take twenty times the body's own memory. Base64 has no commas, a
    # data URL has one.
    if body.count(b",") + body.count(b"[") + body.count(b"{") > 2 * max_images + SPARE_VALUES:
        raise TooLarge(
            f"the JSON body holds far more values than {EXPECTED} needs for {max_images} images: no more are allowed"
        )
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise MalformedRequest(f"the JSON body must be {EXPECTED}, not a JSON {type(document).__name__}")
    unknown = next((key for key in document if key != "images"), None)
    if unknown is not None:
        raise MalformedRequest(f"the key {unknown[:SHOWN]!r} is unknown: the JSON body must be {EXPECTED}")
    images = document.get("images")
    if not isinstance(images, list) or not images:
        raise MalformedRequest(f"the JSON body must be {EXPECTED} with at least one image")
    if len(images) > max_images:
        raise TooLarge(f"the request has {len(images)} images; at most {max_images} are allowed")
    return [unpack(image) for image in images]


def unpack(image: object) -> bytes | RequestError:
    """The file in a string of base64, or in a data URL with such a string."""
    if not isinstance(image, str):
        return InvalidImage(f"the image is a JSON {type(image).__name__}, not a string of base64")
    if image[:5].lower() == "data:":
        head, _, image = image.partition(",")
        if not head.lower().endswith(";base64"):
            return InvalidImage("the image is a data URL without base64; expected is data:image/png;base64,…")
    try:
        return base64.b64decode(image, validate=True)
    except ValueError as error:
        return InvalidImage(f"the image is not base64: {error}")
