"""Who may ask: keys, anonymous callers, and what they are told."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.errors import SettingsError, Unauthorised
from service.settings import Settings
from service.web.auth import Gatekeeper, is_loopback
from service.web.keys import KeyRing, new_key
from tests.conftest import RED, Service, make_bundle
from tests.service.cli.test_cli import run

PNG = {"Content-Type": "image/png"}
ALICE, ALICE_LINE = new_key("alice", "client")
OPS, OPS_LINE = new_key("ops", "admin")


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service on every address that wants keys: one from the environment, one from a file."""
    models = tmp_path_factory.mktemp("locked") / "models"
    make_bundle(models)
    file = models.parent / "keys"
    file.write_text(f"# who may change things\n\n{OPS_LINE}  \n")
    env = {"CONFGATE_API_KEYS": ALICE_LINE, "CONFGATE_API_KEYS_FILE": str(file)}
    service = Service(models, "--host", "0.0.0.0", env=env).wait_until_serving()
    service.url = service.url.replace("0.0.0.0", "127.0.0.1")
    yield service
    assert service.stop() == 0


@pytest.fixture(scope="module")
def stranger(locked: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=locked.url, timeout=30, verify=False, trust_env=False) as client:
        yield client


def ask(client: httpx.Client, **headers: str) -> httpx.Response:
    return client.post("/v1/predict", content=RED, headers={**PNG, **headers})


def test_without_a_key_nothing_but_health_metrics_and_docs_is_answered(stranger: httpx.Client) -> None:
    """Everything else is 401 with WWW-Authenticate, in the form of its protocol, also what does not exist."""
    for path in ("/v2/health/live", "/v2/health/ready", "/metrics", "/docs", "/openapi.json"):
        assert stranger.get(path).status_code == 200, path
    for path in ("/v1/predict", "/v1/models", "/v1/nope", "/", "//metrics", "/metrics/", "/v2/health/../../v1/models"):
        refused = stranger.get(path)
        assert refused.status_code == 401, path
        assert refused.headers["www-authenticate"] == 'Bearer realm="confgate"'
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["type"] == "urn:confgate:problem:unauthorised"
        assert "Authorization: Bearer KEY" in refused.json()["detail"]
    refused = stranger.get("/v2/models/colours")
    assert refused.status_code == 401
    assert list(refused.json()) == ["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {ALICE}"},
        {"Authorization": f"bearer  {OPS}"},
        {"X-API-Key": ALICE},
        {"X-API-Key": OPS, "Authorization": "Basic YTpi"},
    ],
)
def test_a_known_key_is_let_in(stranger: httpx.Client, headers: dict[str, str]) -> None:
    """A key is taken as a bearer token or as X-API-Key; an admin's may ask too, and a proxy may have its own scheme."""
    assert ask(stranger, **headers).json()["predictions"][0]["label"] == "red"


@pytest.mark.parametrize(
    "key",
    ["x", ALICE[:-1], ALICE + "x", ALICE.upper(), ALICE_LINE, ALICE_LINE.split(":")[2], "cg_" + "a" * 5000, "\xff"],
    # Names that are the same in every process that runs tests: the keys are not.
    ids=["short", "cut", "longer", "upper case", "line", "hash", "long", "not ASCII"],
)
def test_another_key_is_not(stranger: httpx.Client, key: str) -> None:
    """A key that is cut, changed, endless, or only the stored hash is unknown, whichever header brings it."""
    for name, value in (("Authorization", f"Bearer {key}"), ("X-API-Key", key)):
        refused = stranger.get("/v1/models", headers={name.encode(): value.encode("latin-1")})
        assert refused.status_code == 401
        assert key not in refused.text or len(key) < 2


def test_no_header_makes_anybody_look_near(stranger: httpx.Client) -> None:
    """X-Forwarded-For and its like are never believed."""
    for header in ("X-Forwarded-For", "X-Real-IP", "Forwarded", "X-Client-IP", "Host"):
        assert ask(stranger, **{header: "127.0.0.1"}).status_code == 401


def test_the_log_has_names_and_no_keys(locked: Service, stranger: httpx.Client) -> None:
    """The line of a request names its caller; neither a good nor a bad key is ever in the log."""
    before = metric(stranger, "confgate_unauthorised_requests_total")
    ask(stranger, Authorization=f"Bearer {ALICE}", **{"X-Request-Id": "named-1"})
    ask(stranger, Authorization="Bearer cg_wrong-key", **{"X-Request-Id": "named-2"})
    ask(stranger, Authorization=f"Bearer {OPS}", **{"X-Request-Id": "named-3"})
    locked.wait_for_line("named-3")
    lines = {line.get("request_id"): line for line in locked.log()}
    assert lines["named-1"]["caller"] == "alice"
    assert lines["named-2"]["status"] == 401
    assert "caller" not in lines["named-2"]
    assert lines["named-3"]["caller"] == "ops"
    text = "".join(locked.lines)
    assert not any(secret in text for secret in (ALICE, OPS, "wrong-key", ALICE_LINE.split(":")[2]))
    assert metric(stranger, "confgate_unauthorised_requests_total") == before + 1


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name + " ")))


def test_on_loopback_nobody_needs_a_key(client: httpx.Client) -> None:
    """A service on 127.0.0.1 answers without one; but what a proxy passes on, and a wrong key, are refused."""
    assert ask(client).status_code == 200
    assert ask(client, Authorization="Basic YTpi").status_code == 200
    assert ask(client, **{"X-Forwarded-For": "127.0.0.1"}).status_code == 401
    assert ask(client, **{"X-API-Key": "guess"}).status_code == 401


@pytest.mark.parametrize(
    ("given", "peer", "headers", "let_in"),
    [
        ({}, "127.0.0.1", [], True),
        ({"host": "localhost"}, "::1", [], True),
        ({"host": "::1"}, "::ffff:127.0.0.1", [], True),
        ({}, "10.0.0.1", [], False),
        ({}, None, [], False),
        ({"api_keys": OPS_LINE}, "127.0.0.1", [], True),
        ({"api_keys": ALICE_LINE}, "127.0.0.1", [], False),
        ({"api_keys": ALICE_LINE, "allow_anonymous": "true"}, "10.0.0.1", [], True),
        ({"api_keys": OPS_LINE, "allow_anonymous": "false"}, "127.0.0.1", [], False),
        ({"host": "0.0.0.0", "allow_anonymous": "true"}, "10.0.0.1", [(b"x-forwarded-for", b"8.8.8.8")], True),
        ({"host": "0.0.0.0", "published_on": "127.0.0.1"}, "172.17.0.1", [], True),
        ({"host": "0.0.0.0", "published_on": "127.0.0.1"}, "172.17.0.1", [(b"forwarded", b"for=_x")], False),
        ({"host": "0.0.0.0", "published_on": "127.0.0.1", "api_keys": ALICE_LINE}, "172.17.0.1", [], False),
        ({"host": "127.0.0.1", "published_on": "0.0.0.0", "api_keys": OPS_LINE}, "127.0.0.1", [], False),
    ],
)
def test_who_may_come_without_a_key(given: dict[str, Any], peer: str | None, headers: list[Any], let_in: bool) -> None:
    """Only those on this machine, while no client has a key, or everybody where that is said."""
    scope = {"headers": headers, "client": peer and (peer, 1)}
    gatekeeper = Gatekeeper(Settings(**given))
    if let_in:
        assert gatekeeper.identify(scope).anonymous
    else:
        with pytest.raises(Unauthorised):
            gatekeeper.identify(scope)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"host": "0.0.0.0"}, "host: '0.0.0.0' can be reached from other machines, and there is no API key"),
        ({"published_on": "0.0.0.0"}, "published_on: '0.0.0.0' can be reached from other machines"),
        ({"allow_anonymous": "false"}, "allow_anonymous is false, and there is no key: nobody could ask"),
    ],
)
def test_a_service_that_would_be_open_or_closed_to_all_is_refused(given: dict[str, str], says: str) -> None:
    """Beyond loopback there must be keys or a permission, and where keys are demanded there must be one."""
    with pytest.raises(SettingsError, match=says) as refused:
        Gatekeeper(Settings(**given))  # type: ignore[arg-type]
    assert "CONFGATE_API_KEYS_FILE" in str(refused.value)


def test_a_service_open_to_the_world_does_not_start(models: Path) -> None:
    """It ends with one sentence that says what to set."""
    message = Service(models, "--host", "0.0.0.0").wait_until_refused()
    assert message.startswith("confgate: host: '0.0.0.0' can be reached from other machines")
    assert "CONFGATE_ALLOW_ANONYMOUS=true" in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ALICE, "line 1: 'cg_"),
        (f"{ALICE_LINE}\n{ALICE_LINE}", "line 2: the name 'alice' is also that of"),
        (f"{ALICE_LINE}\nbob{ALICE_LINE.removeprefix('alice')}", "'bob' has the same key as 'alice'"),
        (ALICE_LINE.replace("client", "root"), "expected NAME:ROLE:SHA256"),
        (ALICE_LINE.replace("alice", "anonymous"), "expected NAME:ROLE:SHA256"),
        (ALICE_LINE[:-1], "expected NAME:ROLE:SHA256"),
    ],
    ids=["a key", "a name twice", "a key twice", "role", "anonymous", "cut"],
)
def test_a_wrong_line_is_named_and_not_shown(tmp_path: Path, text: str, says: str) -> None:
    """A file of keys that cannot be right is refused by its line, and a key in it is not printed."""
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(SettingsError, match=says) as refused:
        Gatekeeper(Settings(api_keys_file=file))
    assert ALICE not in str(refused.value)
    assert ALICE_LINE[-20:] not in str(refused.value)


def test_a_missing_file_of_keys_stops_the_start(tmp_path: Path) -> None:
    """A file that is not there is no empty file: without it, keys would be silently gone."""
    with pytest.raises(SettingsError, match=r"api_keys_file: .*No such file"):
        Gatekeeper(Settings(api_keys_file=tmp_path / "nope"))
    (tmp_path / "bytes").write_bytes(os.urandom(40) + b"\xff")
    with pytest.raises(SettingsError, match="it is no text"):
        Gatekeeper(Settings(api_keys_file=tmp_path / "bytes"))


def test_the_command_makes_keys_that_work(capsys, monkeypatch, tmp_path: Path, locked: Service) -> None:
    """The key is alone on stdout, its line goes to the file, and the service that reads the file knows its role."""
    file = tmp_path / "keys"
    file.write_text("# ours")
    for arguments in (["bob"], ["carol", "--admin"]):
        code, out, err = run(capsys, monkeypatch, "keys", "new", *arguments, "--file", str(file))
        assert code == 0
        key = out.strip()
        assert key not in err
        assert key not in file.read_text()
        caller = Gatekeeper(Settings(api_keys_file=file)).keys.find(key.encode())
        assert caller is not None
        assert (caller.name, caller.admin) == (arguments[0], len(arguments) == 2)
    for name in ("bob", "anonymous", "a b", ""):
        code, out, err = run(capsys, monkeypatch, "keys", "new", name, "--file", str(file))
        assert (code, out) == (2, "")
        assert "name" in err
    assert len(file.read_text().splitlines()) == 3
    image = tmp_path / "red.png"
    image.write_bytes(RED)
    monkeypatch.setenv("CONFGATE_API_KEY", ALICE)
    assert run(capsys, monkeypatch, "predict", "--url", locked.url, str(image))[0] == 0
    code, _, err = run(capsys, monkeypatch, "predict", "--url", locked.url, "--api-key", "no", str(image))
    assert code == 2
    assert "401 An API key is needed: the API key is not known here" in err


def test_two_keys_are_never_alike() -> None:
    """Keys are long and random, and each opens only for its own name."""
    made = [new_key(f"user{i}", "client") for i in range(50)]
    assert len({key for key, _ in made}) == 50
    assert min(len(key) for key, _ in made) >= 46
    ring = KeyRing([(line, "here") for _, line in made])
    assert [ring.find(key.encode()).name for key, _ in made] == [f"user{i}" for i in range(50)]  # type: ignore[union-attr]


def test_addresses_of_this_machine() -> None:
    """127.0.0.0/8, ::1 and localhost are this machine; everything, names and private networks are not."""
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "", "::ffff:10.0.0.1")))
