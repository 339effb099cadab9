"""A page of prose with generated parts between markers."""

import re

from training.errors import DataError

_BLOCK = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def filled(page: str, blocks: dict[str, str]) -> str:
    """The page with every generated part replaced; the prose stays."""
    named = [found["name"] for found in _BLOCK.finditer(page)]
    if sorted(named) != sorted(blocks):
        raise DataError(
            f"the page has generated parts {', '.join(sorted(named)) or 'none'}, expected each of "
            f"{', '.join(sorted(blocks))} once: a line '<!-- generated: NAME -->' and, below it, '<!-- end -->'."
        )
    return _BLOCK.sub(lambda found: f"{found[1]}\n{blocks[found['name']].strip()}\n\n", page)
