"""/docs must work where there is no way out to a CDN."""

import re

import httpx


def test_docs_need_nothing_from_elsewhere(client: httpx.Client) -> None:
    """Every script, style and image of /docs is served by the service itself, and the page names no other host."""
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"https?://|[\"']//", page.text)
    assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {asset.rpartition(".")[2] for asset in assets} == {"js", "css", "png"}
    for asset in assets:
        answer = client.get(asset)
        assert answer.status_code == 200
        assert len(answer.content) > 1000
    assert "/openapi.json" in page.text


def test_no_other_file_is_served(client: httpx.Client) -> None:
    """The folder of the assets is all that can be read: no path leads out of it."""
    for path in ("/docs/assets/../core.py", "/docs/assets/%2e%2e/core.py", "/docs/assets/", "/redoc"):
        assert client.get(path).status_code == 404
