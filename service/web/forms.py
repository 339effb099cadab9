"""multipart/form-data → its files, within the limits, while the bytes come in."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from service.errors import MalformedRequest, RequestError, TooLarge

MAX_NAME = 255


@dataclass(slots=True)
class File:
    name: str | None = None
    content: bytearray = field(default_factory=bytearray)


class _Files:
    """Collects the files of a multipart body as its parser meets them."""

    def __init__(self, max_files: int) -> None:
        self.files: list[File] = []
        self.ended = False
        self._max_files = max_files
        self._header = bytearray()
        self._value = bytearray()
        self._is_file = False
        self._field = ""

    def begin(self) -> None:
        if len(self.files) == self._max_files:
            raise TooLarge(f"the form has more than the {self._max_files} files that are allowed")
        self.files.append(File())
        self._is_file = False

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            self._is_file = b"filename" in options
            self._field = options.get(b"name", b"").decode("utf-8", "replace")
            self.files[-1].name = options.get(b"filename", b"").decode("utf-8", "replace")[:MAX_NAME] or None
        self._header.clear()
        self._value.clear()

    def headers_end(self) -> None:
        if not self._is_file:
            raise MalformedRequest(
                f"the form field {self._field!r} is not a file (curl -F image=@FILE); options go into the query"
            )

    def data(self, data: bytes, start: int, end: int) -> None:
        self.files[-1].content += data[start:end]

    def end(self) -> None:
        self.ended = True


async def read_files(body: AsyncIterator[bytes], content_type: str, max_files: int) -> list[File]:
    """The files of a form, each with its name as sent (at most 255 characters), or None where it has none."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise MalformedRequest("the Content-Type multipart/form-data has no boundary")
    files = _Files(max_files)
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
    return files.files
