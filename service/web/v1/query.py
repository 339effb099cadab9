"""What a request asks for: its query and its headers, checked."""

from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.types import Scope

from service.errors import MalformedRequest
from service.settings import Settings

PARAMETERS = ("model", "version", "policy", "score", "preprocess", "top_k", "partial")
MAX_TIMEOUT_MS = 600_000
MAX_VERSION = 2**63
TRUTH = {"true": True, "1": True, "false": False, "0": False}


@dataclass(slots=True)  # not frozen, like those below: one is made for every request, and that would take twice as long
class Sent:
    """What the headers of a request say, the same on /v1 and /v2."""

    content_type: str
    content_length: int | None
    timeout_ms: int
    deadline: float
    body_deadline: float


@dataclass(slots=True)
class Head:
    """What is known of a request before its body is read, and decides which model answers."""

    sent: Sent
    model: str | None
    version: int | None


@dataclass(slots=True)
class Ask(Head):
    """A request to /v1/predict."""

    policy: str | None
    score: str | None
    preprocess: bool
    top_k: int | None
    partial: bool


def read_sent(scope: Scope, started: float, settings: Settings) -> Sent:
    content_type, content_length, timeout_ms = "", None, settings.request_timeout_ms
    for name, value in scope["headers"]:
        if name == b"content-type":
            content_type = value.decode("latin-1")
        elif name == b"content-length":
            content_length = int(value)  # the HTTP parser has refused everything but digits
        elif name == b"x-request-timeout-ms":
            timeout_ms = whole("X-Request-Timeout-Ms", value.decode("latin-1"), MAX_TIMEOUT_MS)
    deadline = started + timeout_ms / 1000
    return Sent(
        content_type=content_type,
        content_length=content_length,
        timeout_ms=timeout_ms,
        deadline=deadline,
        body_deadline=min(deadline, started + settings.body_timeout_ms / 1000),
    )


def read_ask(scope: Scope, started: float, settings: Settings) -> Ask:
    query = _read_query(scope["query_string"]) if scope["query_string"] else {}
    version, top_k = query.get("version"), query.get("top_k")
    return Ask(
        sent=read_sent(scope, started, settings),
        model=query.get("model"),
        version=None if version is None else whole("version", version, MAX_VERSION),
        policy=query.get("policy"),
        score=query.get("score"),
        preprocess=_truth("preprocess", query),
        top_k=None if top_k is None else whole("top_k", top_k, 2**31),
        partial=_truth("partial", query),
    )


def _read_query(raw: bytes) -> dict[str, str]:
    query: dict[str, str] = {}
    try:
        pairs = parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=len(PARAMETERS))
    except ValueError as error:
        raise MalformedRequest(f"the query has more than {len(PARAMETERS)} parameters") from error
    for name, value in pairs:
        if name not in PARAMETERS:
            raise MalformedRequest(f"the query parameter {name!r} is unknown; known are {', '.join(PARAMETERS)}")
        if name in query:
            raise MalformedRequest(f"the query parameter {name!r} is given twice")
        if not value:
            raise MalformedRequest(f"the query parameter {name!r} has no value")
        query[name] = value
    return query


def whole(name: str, text: str, largest: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and 1 <= int(text) <= largest):
        raise MalformedRequest(f"{name} must be a whole number from 1 to {largest}, not {text[:40]!r}")
    return int(text)


def _truth(name: str, query: dict[str, str]) -> bool:
    text = query.get(name)
    if text is None:
        return False
    if text.lower() not in TRUTH:
        raise MalformedRequest(f"{name} must be true or false, not {text[:40]!r}")
    return TRUTH[text.lower()]
