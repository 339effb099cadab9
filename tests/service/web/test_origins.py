"""Pages in a browser: a foreign Host is not answered, and a page of another site can send nothing but a GET."""

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.errors import CrossSite, SettingsError, WrongHost
from service.settings import Settings
from service.web.auth import Gatekeeper
from tests.conftest import ADMIN, GREY, RED, Service, make_bundle
from tests.service.conftest import HeldService

PNG = {"Content-Type": "image/png"}
FOREIGN_HOSTS = (
    *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example:8000"),
    *("0.0.0.0:8000", "[::2]:8000", "127.0.0.2", "localhost@evil.example", "[::1", "localhost:x", "é", ""),
)
FOREIGN_PAGES: tuple[dict[str, str], ...] = (
    {"Origin": "http://evil.example"},
    {"Origin": "https://127.0.0.1"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example", "Content-Type": "text/plain"},
    {"Sec-Fetch-Site": "none", "Origin": "null"},
)


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_foreign_host_is_421(client: httpx.Client, host: str) -> None:
    """On loopback a request by another name gets 421 in its protocol's form, with that name and the setting."""
    headers = {"Host": host.encode()}
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/predict"), ("GET", "/docs"), ("GET", "/openapi.json")):
        refused = client.request(method, path, headers=headers)
        assert refused.status_code == 421
        assert refused.json()["type"] == "urn:confgate:problem:wrong-host"
        assert repr(host.encode().decode("latin-1")) in refused.json()["detail"]
        assert "CONFGATE_ALLOWED_HOSTS" in refused.json()["detail"]
    refused = client.get("/v2/models/colours", headers=headers)
    assert refused.status_code == 421
    assert list(refused.json()) == ["error"]


def test_probes_may_use_any_host(client: httpx.Client) -> None:
    """Health and metrics are answered by a pod's address too."""
    for path in ("/v2/health/live", "/v2/health/ready", "/metrics"):
        assert client.get(path, headers={"Host": "10.1.2.3:8000"}).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "LocalHost:1", "localhost.:8000", "127.0.0.1", "127.0.0.1:", "[::1]:80"])
def test_the_port_of_a_host_does_not_count(client: httpx.Client, host: str) -> None:
    """A name of this machine is answered with any port, however it is spelt."""
    assert client.get("/v1/models", headers={"Host": host}).status_code == 200


def test_a_request_without_a_host_is_answered(service: Service) -> None:
    """HTTP/1.0 has no Host, and browsers do not speak it."""
    address = httpx.URL(service.url)
    with socket.create_connection((address.host, address.port), timeout=30) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


IN_A_CONTAINER = {"host": "0.0.0.0", "published_on": "127.0.0.1"}
OPEN = {"host": "0.0.0.0", "allow_anonymous": "true"}


@pytest.mark.parametrize(
    ("given", "host", "allowed"),
    [
        ({"host": "127.0.0.5"}, "127.0.0.5:8000", True),
        ({"host": "::1"}, "[::1]", True),
        (IN_A_CONTAINER, "localhost:8000", True),
        (IN_A_CONTAINER, "evil.example", False),
        (IN_A_CONTAINER, "confgate:8000", False),
        (IN_A_CONTAINER, "0.0.0.0:8000", False),
        (IN_A_CONTAINER | {"allowed_hosts": "auto, Confgate:8000"}, "confgate:9000", True),
        (OPEN, "anything.example", True),
        (OPEN | {"allowed_hosts": "api.example.org  [fe80::1]:80,fe80::2"}, "API.example.org.:1", True),
        (OPEN | {"allowed_hosts": "api.example.org  [fe80::1]:80,fe80::2"}, "[fe80::1]", True),
        (OPEN | {"allowed_hosts": "api.example.org  [fe80::1]:80,fe80::2"}, "[fe80::2]:8000", True),
        (OPEN | {"allowed_hosts": "api.example.org"}, "localhost", False),
        ({"allowed_hosts": "*"}, "evil.example", True),
    ],
)
def test_which_hosts_are_allowed(given: dict[str, Any], host: str, allowed: bool) -> None:
    """Unless names are set: on loopback, or published there, this machine's names only, elsewhere all."""
    scope = {"headers": [(b"host", host.encode())], "client": ("127.0.0.1", 1), "method": "GET"}
    gatekeeper = Gatekeeper(Settings(**given))
    for _ in range(2):  # the second time it may be remembered
        if allowed:
            assert gatekeeper.identify(scope)
        else:
            with pytest.raises(WrongHost):
                gatekeeper.identify(scope)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"allowed_hosts": "http://localhost"}, "allowed_hosts: 'http://localhost' is no host name"),
        ({"allowed_hosts": " , "}, "allowed_hosts: no name is given"),
        ({"allowed_origins": "app.example.org"}, "allowed_origins: 'app.example.org' is no origin"),
        ({"allowed_origins": "https://app.example.org/page"}, "allowed_origins: .* is no origin"),
        ({"allowed_origins": "null"}, "allowed_origins: 'null' is no origin"),
    ],
)
def test_a_wrong_name_stops_the_start(given: dict[str, str], message: str) -> None:
    """A host or an origin that could never match is named, with what was expected."""
    with pytest.raises(SettingsError, match=message):
        Gatekeeper(Settings(**given))


def test_a_page_of_another_site_leaves_no_trace(models: Path, tmp_path: Path) -> None:
    """Its POST gets 403, and nothing is computed, counted or captured."""
    make_bundle(models)
    service = HeldService(models, capture_dir=tmp_path / "captured", capture_rate=1)
    try:
        before = counts_of(service)
        for headers in FOREIGN_PAGES:
            refused = service.client.post("/v1/predict", content=GREY, headers={**PNG, **headers})
            assert refused.status_code == 403, headers
            assert refused.json()["type"] == "urn:confgate:problem:cross-site"
            assert "CONFGATE_ALLOWED_ORIGINS" in refused.json()["detail"]
            refused = service.client.post("/v2/models/colours/infer", content=b"{}", headers=headers)
            assert (refused.status_code, list(refused.json())) == (403, ["error"])
        gate = "/v1/models/colours/versions/1/gate"
        for headers in FOREIGN_PAGES:
            refused = service.client.request("DELETE", gate, headers={**ADMIN, **headers})
            assert refused.status_code == 403
        assert counts_of(service) == before
        assert service.held.batches == []
        assert service.client.post("/v1/predict", content=GREY, headers=PNG).status_code == 200
        assert counts_of(service) != before
        assert service.held.batches == [1]
    finally:
        service.stop()
    assert len(list((tmp_path / "captured").rglob("*.png"))) == 1


def counts_of(service: HeldService) -> list[str]:
    """What /metrics counts of requests, images and refused keys."""
    lines = service.client.get("/metrics").text.splitlines()
    return [line for line in lines if line.startswith("confgate_") and "seconds" not in line.split("{")[0]]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "OWN"},
        {"Origin": "OWN", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "https://proxied.example", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://localhost", "Host": "localhost:80"},
        {},
    ],
)
def test_own_pages_and_programs_are_answered(client: httpx.Client, headers: dict[str, str]) -> None:
    """A request from /docs, or from a program that sends neither header, is answered."""
    own = str(client.base_url).rstrip("/")
    headers = {name: own if value == "OWN" else value for name, value in headers.items()}
    assert client.post("/v1/predict", content=RED, headers={**PNG, **headers}).status_code == 200


def test_a_page_of_another_site_may_link_here(client: httpx.Client) -> None:
    """A GET changes nothing, and the browser keeps its answer from the page."""
    for headers in FOREIGN_PAGES:
        assert client.get("/v1/models", headers=headers).status_code == 200
        assert client.head("/docs/assets/swagger-ui.css", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("allowed", "headers", "answered"),
    [
        ("https://app.example", {"origin": "https://app.example", "sec-fetch-site": "cross-site"}, True),
        ("http://localhost:3000, HTTPS://App.Example/", {"origin": "https://app.example"}, True),
        ("https://app.example", {"origin": "https://app.example:444"}, False),
        ("https://app.example", {"origin": "http://app.example"}, False),
        ("https://app.example", {"sec-fetch-site": "cross-site"}, False),
        ("https://app.example", {"origin": "null"}, False),
        ("*", {"origin": "null", "sec-fetch-site": "cross-site"}, True),
        ("", {"origin": "https://app.example"}, False),
    ],
)
def test_which_pages_are_allowed(allowed: str, headers: dict[str, str], answered: bool) -> None:
    """The origins that are set may send everything, and no others."""
    sent = [(name.encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()]
    scope = {"headers": sent, "client": ("127.0.0.1", 1), "method": "POST"}
    gatekeeper = Gatekeeper(Settings(allowed_origins=allowed))
    if answered:
        assert gatekeeper.identify(scope)
    else:
        with pytest.raises(CrossSite):
            gatekeeper.identify(scope)
