"""Dashboards and rules against the real thing: a running service, scraped by a real Prometheus."""

import math
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import BLUE, GREEN, GREY, RED, Service, make_bundle
from tests.deploy.shipped import (
    OPERATOR_BOARD,
    PROMETHEUS,
    RULE_FILES,
    TIMEOUT_SECONDS,
    Query,
    dashboard,
    dashboard_queries,
    need,
    panels,
    read,
    rule_queries,
    rules,
    variable_queries,
    wait_for,
)
from tests.pair_bundles import DARK, make_pair_bundle

# What a dashboard's variables stand for here: a model whose gates compare one score, and one with a pair.
CHOICES = {
    "one score": {"model": "colours", "version": "1|2", "score": "confidence"},
    "pair": {"model": "pairs", "version": "1", "score": "typicality"},
}
each_choice = pytest.mark.parametrize("chosen", CHOICES.values(), ids=CHOICES)
# Labels that Prometheus adds itself, and the two metrics that it makes.
TARGET = {"job", "instance"}
OWN = {"up": TARGET, "ALERTS": {"alertname", "alertstate", "severity", "model"}}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with two versions of a model and one that has pairs, on a device that was asked for as `auto`."""
    models = tmp_path_factory.mktemp("watched") / "models"
    make_bundle(models)
    make_bundle(models, version=2)
    make_pair_bundle(models, "pairs")
    running = Service(models, env={"CONFGATE_DEVICE": "auto", "CONFGATE_ACCESS_LOG": "false"}).wait_until_serving()
    stop = threading.Event()
    load = threading.Thread(target=send_mixed_load, args=(running.url, stop))
    load.start()
    yield running
    stop.set()
    load.join(TIMEOUT_SECONDS)
    assert running.stop() == 0


@pytest.fixture(scope="module")
def prometheus(watched: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Prometheus with the shipped rules, scraping that service every second instead of every 15."""
    program, folder = need("prometheus"), tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"] = [job for job in config["scrape_configs"] if job["job_name"] == "confgate"]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [watched.url.removeprefix("http://")]}]
    config["rule_files"] = []
    del config["alerting"]
    for file in RULE_FILES:
        groups = yaml.safe_load(file.read_text(encoding="utf-8"))
        for group in groups["groups"]:
            group.pop("interval", None)
        (folder / file.name).write_text(yaml.safe_dump(groups), encoding="utf-8")
        config["rule_files"].append(file.name)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=TIMEOUT_SECONDS) as client:
            wait_for(lambda: None if is_ready(client) else f"not ready: {(folder / 'log').read_text()}")
            yield client
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)
        log.close()


def send_mixed_load(url: str, stop: threading.Event) -> None:
    """Known and unknown images under every score, in both versions, and requests that are wrong."""
    png = {"Content-Type": "image/png"}
    with httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS) as client:
        while not stop.wait(0.05):
            for image in (RED, GREEN, BLUE, GREY):
                client.post("/v1/predict", content=image, headers=png, params={"version": 1})
                client.post("/v1/predict", content=image, headers=png, params={"version": 2, "preprocess": True})
            for image in (RED, GREY, DARK):  # accepted, unsure and unfamiliar
                client.post("/v1/predict", content=image, headers=png, params={"model": "pairs"})
            client.post("/v1/predict", content=b"no image", headers=png)
            client.post("/v1/predict", content=RED, headers=png, params={"model": "unknown"})


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def ask(client: httpx.Client, expr: str) -> list[float]:
    """The numbers that an expression gives now."""
    answer = client.post("/api/v1/query", data={"query": expr}).json()
    assert answer["status"] == "success", f"{answer['error']}: {expr}"
    values = [float(sample["value"][1]) for sample in answer["data"]["result"]]
    return [value for value in values if not math.isnan(value)]


def filled_in(expr: str, chosen: dict[str, str]) -> str:
    """An expression with the dashboards' variables replaced, as Grafana would."""
    expr = expr.replace("$__rate_interval", "1m")
    return re.sub(r"\$(\w+)", lambda match: chosen[match[1]], expr)


def compared(expr: str) -> str:
    """An alert's expression whose comparisons answer 0 or 1 instead of nothing."""
    outside = re.split(r"(\{[^}]*\})", expr)
    outside[::2] = [re.sub(r"(==|!=|>=|<=|>|<)", r"\1 bool", text) for text in outside[::2]]
    return "".join(outside)


def test_every_query_uses_what_the_service_exports(watched: Service) -> None:
    """Each metric, label and label value in a dashboard or rule is one that the service really exports."""
    exported: dict[str, dict[str, set[str]]] = {}
    wait_for(lambda: None if "confgate_requests_total" in scrape(watched, exported) else "no request was counted")
    labels = {name: {*values, *TARGET} for name, values in exported.items()} | OWN
    for rule in rules():
        if "record" in rule:
            made = {*rule.get("labels", ()), *re.findall(r'label_replace\(.*?, "(\w+)"', rule["expr"])}
            used = {label for name, _ in read(rule["expr"])[0] for label in labels.get(name, ())}
            labels.setdefault(rule["record"], set()).update(used | made)
    queries = [*rule_queries(), *dashboard_queries()]
    queries += [Query(query.where, f"count by ({label}) ({query.expr})") for query, label in variable_queries()]
    assert [problem for query in queries for problem in problems_of(query, labels, exported)] == []


def test_a_misspelt_query_is_found() -> None:
    """An unknown metric, an unknown label, and a value that nothing has are each found, whatever is around them."""
    exported = {"requests": {"outcome": {"ok", "shed"}}}
    labels = {"requests": {"outcome", "job"}, "up": {"job"}}

    def problems(expr: str) -> list[str]:
        return list(problems_of(Query("here", expr), labels, exported))

    assert problems('sum by (outcome) (rate(requests{outcome=~"ok|error"}[5m] offset 1m)) / on (job) up') == []
    assert problems("rate(request[5m]) > 0") == ["here: request is unknown"]
    assert problems("sum by (route) (requests)") == ["here: no metric in it has the label route"]
    assert problems('requests{route="x"}') == ["here: requests has no label route"]
    assert problems('requests{outcome="Shed"}') == ["here: no requests has outcome = Shed"]


@each_choice
def test_every_dashboard_query_returns_data(prometheus: httpx.Client, chosen: dict[str, str]) -> None:
    """Under mixed load each panel's query, and the mark of a loaded model, gives a number, whatever the gate is."""
    waiting = [query for query in dashboard_queries() if not query.expr.startswith("ALERTS")]
    wait_for(lambda: still_without_data(prometheus, waiting, lambda expr: filled_in(expr, chosen)))


def test_the_first_panels_show_what_the_gate_in_force_refuses(prometheus: httpx.Client) -> None:
    """A third of the pair's images is unfamiliar and a third unsure; a gate of one score has 0 for its other reason."""
    unfamiliar, unsure = (panel["targets"][0]["expr"] for panel in panels(dashboard(OPERATOR_BOARD))[:2])
    of_pair, of_one = CHOICES["pair"], CHOICES["one score"] | {"version": "1"}

    def wrong() -> str | None:
        shares = [ask(prometheus, filled_in(expr, of_pair)) for expr in (unfamiliar, unsure)]
        near = [share == [pytest.approx(1 / 3, abs=0.1)] for share in shares]
        return None if all(near) else f"live shares: {shares}"

    wait_for(wrong)
    wait_for(lambda: None if ask(prometheus, filled_in(unfamiliar, of_one)) > [0.0] else "nothing is unfamiliar")
    assert ask(prometheus, filled_in(unsure, of_one)) == [0.0]


def test_every_rule_returns_data(prometheus: httpx.Client) -> None:
    """Under mixed load each recorded series has values, and each alert's expression has something to compare."""
    waiting = rule_queries()
    wait_for(lambda: still_without_data(prometheus, waiting, compared))
    groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
    unhealthy = [rule for group in groups for rule in group["rules"] if rule["health"] != "ok"]
    assert unhealthy == []


@each_choice
def test_every_variable_offers_a_choice(prometheus: httpx.Client, chosen: dict[str, str]) -> None:
    """Each variable of a dashboard has the values that the tests choose from."""
    for query, label in variable_queries():
        match = {"match[]": filled_in(query.expr, chosen)}
        answer = prometheus.get(f"/api/v1/label/{label}/values", params=match)
        assert set(chosen[label].split("|")) <= set(answer.json()["data"]), query.where


def scrape(service: Service, exported: dict[str, dict[str, set[str]]]) -> dict[str, dict[str, set[str]]]:
    """Adds what the service exports now: the values of each label of each metric."""
    for family in text_string_to_metric_families(httpx.get(f"{service.url}/metrics").text):
        for sample in family.samples:
            labels = exported.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return exported


def problems_of(query: Query, labels: dict[str, set[str]], exported: dict[str, dict[str, set[str]]]) -> Iterator[str]:
    selectors, grouping = read(query.expr)
    known = {label for name, _ in selectors for label in labels.get(name, ())}
    for name, matchers in selectors:
        if name not in labels:
            yield f"{query.where}: {name} is unknown"
            return
        for label, operator, value in matchers:
            if label not in labels[name]:
                yield f"{query.where}: {name} has no label {label}"
            values = exported.get(name, {}).get(label)
            pattern = value if operator == "=~" else re.escape(value)
            if values is None or "$" in value or operator not in ("=", "=~"):
                continue
            if not any(re.fullmatch(pattern, one) for one in values):
                yield f"{query.where}: no {name} has {label} {operator} {value}"
    for label in sorted(grouping - known):
        yield f"{query.where}: no metric in it has the label {label}"


def still_without_data(client: httpx.Client, waiting: list[Query], prepare: Callable[[str], str]) -> list[Query]:
    waiting[:] = [query for query in waiting if not ask(client, prepare(query.expr))]
    return waiting
