"""The Dockerfile and the compose files, as far as they can be judged without a Docker engine."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.errors import SettingsError
from service.serving import budgets
from service.settings import ENV_PREFIX, Settings
from service.web import connections
from service.web.auth import Gatekeeper
from tests.deploy.shipped import DASHBOARDS, GRAFANA, ROOT, dashboard, need

DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
COMPOSE_FILES = ("docker-compose.yml", "docker-compose.gpu.yml")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / COMPOSE_FILES[0]).read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
MEGABYTE = 2**20
each_service = pytest.mark.parametrize("name", SERVICES)


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_compose_files_follow_the_specification(file: str) -> None:
    """The compose specification's own schema accepts the file."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", ROOT / file]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_old_docker_compose_can_read_it() -> None:
    """There is no top-level `name` or `version`: docker-compose 1.29 refuses the one, newer ones warn of the other."""
    assert not {"name", "version"} & set(COMPOSE)


@each_service
def test_every_container_is_hardened(name: str) -> None:
    """No container can write to its image, gain a capability or a privilege, or run an image of no fixed version."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert re.fullmatch(r"confgate:cpu|[\w/]+:v?\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?", service["image"])


@each_service
def test_no_container_can_starve_the_others(name: str) -> None:
    """Memory, processes and open files of each container have a limit."""
    service = SERVICES[name]
    assert 128 * MEGABYTE <= memory_limit(name) <= 4096 * MEGABYTE
    assert 128 <= service["pids_limit"] <= 1024
    files = service["ulimits"]["nofile"]
    assert 1024 <= files["soft"] <= files["hard"]


def test_the_service_fits_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits leave room for what the service may take: its memory under attack, and all connections it offers."""
    monkeypatch.setattr(budgets, "usable_memory", lambda: memory_limit("confgate"))
    idle, other = 500, 300  # megabytes, as docs/reliability.md has them
    assert (
        idle + budgets.bodies_megabytes(0) + budgets.decoding_megabytes(0) + other < memory_limit("confgate") / MEGABYTE
    )
    monkeypatch.setattr(connections, "_descriptors", lambda: SERVICES["confgate"]["ulimits"]["nofile"]["soft"])
    assert connections.connection_limit(0) == connections.MOST


@each_service
def test_every_port_is_published_on_loopback(name: str) -> None:
    """Nothing is reachable from another machine until somebody sets an address."""
    for port in SERVICES[name]["ports"]:
        assert filled_in(port).startswith("127.0.0.1:"), port


def test_containers_start_in_order() -> None:
    """Prometheus waits for a healthy service and Alertmanager, Grafana for a healthy Prometheus."""
    waits = {name: set(service["depends_on"]) for name, service in SERVICES.items() if "depends_on" in service}
    assert waits == {"prometheus": {"confgate", "alertmanager"}, "grafana": {"prometheus"}}
    for name in SERVICES.keys() - {"confgate"}:
        assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    conditions = {wait["condition"] for name in waits for wait in SERVICES[name]["depends_on"].values()}
    assert conditions == {"service_healthy"}


def test_the_example_settings_are_the_defaults() -> None:
    """.env.example names every variable of the compose files, with the value that holds without it."""
    text = (ROOT / ".env.example").read_text(encoding="utf-8")
    offered = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", text, re.MULTILINE))
    del offered["COMPOSE_FILE"]
    used = {}
    for file in COMPOSE_FILES:
        used |= defaults_in((ROOT / file).read_text(encoding="utf-8"))
    assert offered == used


def test_the_service_knows_its_settings() -> None:
    """Each CONFGATE_ variable that an image or a compose file sets is a setting of the service."""
    texts = [DOCKERFILE, *((ROOT / file).read_text(encoding="utf-8") for file in COMPOSE_FILES)]
    named = {name for text in texts for name in re.findall(rf"\b{ENV_PREFIX}[A-Z_]+", text)}
    assert named <= {ENV_PREFIX + field.upper() for field in Settings.model_fields}


def test_publishing_further_needs_keys() -> None:
    """The service is told where its port is published, so that another address without keys does not start."""
    environment = SERVICES["confgate"]["environment"]
    (port,) = SERVICES["confgate"]["ports"]
    assert port.startswith(environment["CONFGATE_PUBLISHED_ON"] + ":")
    settings = {"host": "0.0.0.0", "allow_anonymous": filled_in(environment["CONFGATE_ALLOW_ANONYMOUS"])}
    assert Gatekeeper(Settings(published_on=filled_in(environment["CONFGATE_PUBLISHED_ON"]), **settings))
    with pytest.raises(SettingsError, match="CONFGATE_API_KEYS_FILE"):
        Gatekeeper(Settings(published_on="0.0.0.0", **settings))


def test_keys_come_as_a_file() -> None:
    """The shipped file of keys is where the service looks, can be read by it, and holds no key."""
    (secret,) = SERVICES["confgate"]["secrets"]
    assert SERVICES["confgate"]["environment"]["CONFGATE_API_KEYS_FILE"] == f"/run/secrets/{secret}"
    file = ROOT / filled_in(COMPOSE["secrets"][secret]["file"])
    assert file.stat().st_mode & 0o004
    assert Gatekeeper(Settings(api_keys_file=file)).keys.callers == []


def test_what_operators_set_survives_the_container() -> None:
    """The state folder is a volume, on a folder of the image that the service's user owns."""
    folder = SERVICES["confgate"]["environment"]["CONFGATE_STATE"]
    assert f"state:{folder}" in SERVICES["confgate"]["volumes"]
    assert re.search(rf"install --directory --owner confgate --group confgate --mode 700 {folder}$", DOCKERFILE, re.M)


def test_docker_waits_for_the_drain() -> None:
    """Docker kills the service later than the service gives up on requests in flight."""
    grace = SERVICES["confgate"]["stop_grace_period"]
    assert float(grace.removesuffix("s")) > Settings.model_fields["drain_seconds"].default


def test_mounted_configuration_exists() -> None:
    """Each file and folder of the repository that a container mounts is there, and mounted read-only."""
    for service in SERVICES.values():
        for volume in map(filled_in, service.get("volumes", ())):
            source, _, *mode = volume.split(":")
            if source.startswith("."):
                assert (ROOT / source).is_dir(), volume
                assert mode == ["ro"], volume
            else:
                assert source in COMPOSE["volumes"], volume


def test_grafana_is_for_looking() -> None:
    """Anonymous visitors of Grafana may look, and there is no administrator with a known password."""
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert filled_in(environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"]) == "true"
    assert filled_in(environment["GF_SECURITY_ADMIN_PASSWORD"]) == ""


def test_dashboards_ask_the_provisioned_source() -> None:
    """Every panel asks the data source that Grafana is provisioned with."""
    file = GRAFANA / "provisioning" / "datasources" / "prometheus.yml"
    (source,) = yaml.safe_load(file.read_text(encoding="utf-8"))["datasources"]
    asked = {
        panel["datasource"]["uid"]
        for file in DASHBOARDS
        for panel in dashboard(file)["panels"]
        if panel["type"] != "row"
    }
    assert asked == {source["uid"]}


def test_hadolint_has_no_complaint() -> None:
    """hadolint finds nothing to improve in the Dockerfile."""
    hadolint = Path(sys.executable).with_name("hadolint")
    command = [str(hadolint) if hadolint.exists() else need("hadolint"), str(ROOT / "docker" / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_needs_no_root_no_shell_and_no_buildkit() -> None:
    """The service runs as a numbered user and as process 1 itself, and the classic builder can build it."""
    assert re.search(r"^USER \d+:\d+$", DOCKERFILE, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["confgate", "serve",', DOCKERFILE, re.MULTILINE)
    assert not re.search(r"--mount|--chmod|--link|<<", DOCKERFILE)


def test_the_image_calls_nobody() -> None:
    """ONNX Runtime's telemetry, which its Linux wheels have on by default, is off in the image."""
    assert re.search(r"^ +ORT_DISABLE_TELEMETRY=1 ", DOCKERFILE, re.MULTILINE)


def memory_limit(name: str) -> int:
    """In bytes."""
    limit = filled_in(SERVICES[name]["mem_limit"])
    return int(limit[:-1]) * {"m": MEGABYTE, "g": 1024 * MEGABYTE}[limit[-1]]


def defaults_in(text: str) -> dict[str, str]:
    return dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", text))


def filled_in(text: str) -> str:
    """A value as compose reads it when no variable is set."""
    return re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", text)
