"""Request bodies → encoded images, with every limit enforced while the bytes come in.

A body is one raw image, multipart/form-data with files, or JSON {"images": [base64, …]}.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.types import Message, Receive, Scope

from service.errors import ClientGone, InvalidImage, MalformedRequest, RequestError, TooLarge, UnsupportedType
from service.model.images import MEDIA_TYPES

RAW_TYPES = MEDIA_TYPES | {"", "application/octet-stream"}
# A client that is still sending does not read its answer. Up to this many times the limit, the rest of a body that is
# too large is read and discarded, so that the client gets the answer instead of a broken connection.
DISCARDED = 4
SPARE_VALUES = 1_000  # up to this many values too many are still parsed, for an error that says what is wrong
# Parsing up to this many bytes takes less time than handing them to a thread.
SMALL_JSON = 50_000


@dataclass(frozen=True, slots=True)
class BodyLimits:
    max_bytes: int
    max_images: int


async def read_images(
    scope: Scope, receive: Receive, content_type: str, content_length: int | None, limits: BodyLimits
) -> list[bytes | RequestError]:
    """The encoded images of a request. The place of an item that is not base64 is taken by its error."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type not in RAW_TYPES and media_type not in ("multipart/form-data", "application/json"):
        raise UnsupportedType(
            f"Content-Type {media_type!r} is not served: send image/png, image/jpeg, image/webp, image/bmp, "
            "image/gif or image/tiff with the file as body, or multipart/form-data, or application/json"
        )
    if media_type in RAW_TYPES:
        image = await read_whole(scope, receive, content_length, limits.max_bytes)
        if not image:
            raise MalformedRequest("the body is empty: send the image file as the body (curl --data-binary @FILE)")
        return [image]
    if media_type == "application/json":
        document = await read_whole(scope, receive, content_length, limits.max_bytes)
        if len(document) < SMALL_JSON:
            return _images_of_json(document, limits.max_images)
        return await asyncio.to_thread(_images_of_json, document, limits.max_images)
    body = stream(scope, receive, content_length, limits.max_bytes)
    return await _images_of_multipart(body, content_type, limits.max_images)


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
    # Counted before it is parsed: nested lists would take twenty times the body's own memory. Base64 has no commas.
    if body.count(b",") + body.count(b"[") + body.count(b"{") > max_images + SPARE_VALUES:
        raise TooLarge(
            f'the JSON body holds far more values than {{"images": [base64, …]}} needs for {max_images} images, '
            "and more are not allowed"
        )
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"the body is not JSON: {error}") from error
    images = document.get("images") if isinstance(document, dict) and set(document) == {"images"} else None
    if not isinstance(images, list) or not images:
        raise MalformedRequest('the JSON body must be {"images": [base64, …]} with at least one image')
    if len(images) > max_images:
        raise TooLarge(f"the request has {len(images)} images; at most {max_images} are allowed")
    return [unpack(image) for image in images]


def unpack(image: object) -> bytes | RequestError:
    if not isinstance(image, str):
        return InvalidImage(f"the image is a JSON {type(image).__name__}, not a string of base64")
    try:
        return base64.b64decode(image, validate=True)
    except ValueError as error:
        return InvalidImage(f"the image is not base64: {error}")


class _Files:
    """Collects the files of a multipart body as its parser meets them."""

    def __init__(self, max_files: int) -> None:
        self.files: list[bytearray] = []
        self.ended = False
        self._max_files = max_files
        self._header = bytearray()
        self._value = bytearray()
        self._is_file = False
        self._name = ""

    def begin(self) -> None:
        if len(self.files) == self._max_files:
            raise TooLarge(f"the form has more than the {self._max_files} files that are allowed")
        self.files.append(bytearray())
        self._is_file = False

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            self._is_file = b"filename" in options
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._header.clear()
        self._value.clear()

    def headers_end(self) -> None:
        if not self._is_file:
            raise MalformedRequest(
                f"the form field {self._name!r} is not a file (curl -F image=@FILE); options go into the query"
            )

    def data(self, data: bytes, start: int, end: int) -> None:
        self.files[-1] += data[start:end]

    def end(self) -> None:
        self.ended = True


async def _images_of_multipart(
    body: AsyncIterator[bytes], content_type: str, max_images: int
) -> list[bytes | RequestError]:
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise MalformedRequest("the Content-Type multipart/form-data has no boundary")
    files = _Files(max_images)
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": files.begin,
                "on_header_field": files.header_name,
                "on_header_value": files.header_value,
                "on_header_end": files.header_end,
                "on_headers_finished": files.headers_end,
                "on_part_data": files.data,
                "on_end": files.end,
            },
        )
    except FormParserError as error:
        raise MalformedRequest(f"the multipart boundary is not usable: {error}") from error
    failure: RequestError | None = None
    async for chunk in body:
        if failure is not None:
            continue  # the rest is read and discarded, so that the client gets the answer
        try:
            parser.write(chunk)
        except FormParserError as error:
            failure = MalformedRequest(f"the multipart body is malformed: {error}")
        except RequestError as error:
            failure = error
    if failure is not None:
        raise failure
    if not files.ended:
        raise MalformedRequest("the multipart body is malformed: its closing boundary is missing")
    if not files.files:
        raise MalformedRequest("the form has no file (curl -F image=@FILE)")
    return [bytes(file) for file in files.files]
