"""Values that come as text in a query, a path or a header: checked, and named where they are wrong."""

from collections.abc import Iterable

from service.errors import MalformedRequest

MAX_VERSION = 2**63
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def whole_number(name: str, text: str, largest: int) -> int:
    """A whole number from 1 to `largest`, or MalformedRequest."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and 1 <= int(text) <= largest):
        raise MalformedRequest(f"{name} must be a whole number from 1 to {largest}, not {text[:40]!r}")
    return int(text)


def truth_value(name: str, text: str | None) -> bool:
    """True or false, or MalformedRequest; False where nothing is given."""
    if text is None:
        return False
    if text.lower() not in _TRUTH:
        raise MalformedRequest(f"{name} must be true or false, not {text[:40]!r}")
    return _TRUTH[text.lower()]


def refuse_repeated(query: Iterable[tuple[str, str]]) -> None:
    """MalformedRequest for a parameter that is given twice: the framework would take the last one without a word."""
    seen: set[str] = set()
    for name, _ in query:
        if name in seen:
            raise MalformedRequest(f"the query parameter {name[:40]!r} is given twice")
        seen.add(name)
