"""What the deployment ships: files, their queries, and the programs that check them."""

import functools
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "docker" / "grafana"
PROMETHEUS = ROOT / "docker" / "prometheus"
RULE_FILES = sorted((PROMETHEUS / "rules").glob("*.yml"))
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
OPERATOR_BOARD = GRAFANA / "dashboards" / "operator.json"

TIMEOUT_SECONDS = 60  # an idle machine needs a few

# A string, or a name with its matchers. Possessive, so that a name never matches in part.
TOKEN = re.compile(r'"[^"]*"|([a-zA-Z_:][\w:]*+)(\{[^}]*\})?+(\s*\()?')
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
KEYWORDS = frozenset({"and", "or", "unless", "bool"})


class Query(NamedTuple):
    """A PromQL expression, and where it stands."""

    where: str
    expr: str


class Selector(NamedTuple):
    metric: str
    matchers: tuple[tuple[str, str, str], ...]


def need(program: str) -> str:
    """The path of a program. Without it the test is skipped; in CI, where it must be installed, the test fails."""
    path = shutil.which(program)
    if path is None and os.environ.get("CI") == "true":
        pytest.fail(f"{program} is not installed, and CI=true: this test may not be skipped")
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def wait_for(problem: Callable[[], Any], timeout: float = TIMEOUT_SECONDS) -> None:
    """Polls until there is no problem, and fails with the last one after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while (last := problem()) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not last, last


def rules() -> Iterator[dict[str, Any]]:
    for file in RULE_FILES:
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
            yield from group["rules"]


def rule_queries() -> list[Query]:
    return [Query(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]


@functools.cache
def dashboard(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def dashboard_queries() -> list[Query]:
    found = []
    for file in DASHBOARDS:
        board = dashboard(file)
        for panel in panels(board):
            found += [Query(f"{file.stem}: {panel['title']}", target["expr"]) for target in panel["targets"]]
        found += [Query(f"{file.stem}: {mark['name']}", mark["expr"]) for mark in board["annotations"]["list"]]
    return found


def variable_queries() -> list[tuple[Query, str]]:
    """For each variable the series that it looks at, and the label whose values it offers."""
    found = []
    for file in DASHBOARDS:
        for variable in dashboard(file)["templating"]["list"]:
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert match is not None, variable["query"]
            found.append((Query(f"{file.stem}: ${variable['name']}", match[1]), match[2]))
    return found


def read(expr: str) -> tuple[list[Selector], set[str]]:
    """The selectors of an expression, and the labels by which it groups or matches."""
    labels = {name.strip() for names in GROUPING.findall(expr) for name in names.split(",")} - {""}
    rest = re.sub(r"\[[^\]]*\]|\boffset\s+\w+", " ", GROUPING.sub(" ", expr))
    selectors = [
        Selector(name, tuple(MATCHER.findall(matchers)))
        for name, matchers, call in (match.groups(default="") for match in TOKEN.finditer(rest))
        if name and not call and name not in KEYWORDS
    ]
    return selectors, labels
