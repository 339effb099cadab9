"""The dashboards as files: what is committed is what the code makes, and Grafana can read it."""

import enum
import functools
import json
import re
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from service.model.scores import SOFTMAX_SCORES
from tests.deploy.shipped import DASHBOARDS, GRAFANA, dashboard, panels

hints_of = functools.cache(typing.get_type_hints)
each_dashboard = pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)


def test_committed_dashboards_are_the_generated_ones(tmp_path: Path) -> None:
    """Running the generator changes nothing, so that nobody edits the JSON by hand."""
    subprocess.run([sys.executable, GRAFANA / "generate.py", "--out", tmp_path], check=True, timeout=60)
    generated = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert generated == {file.name: file.read_text(encoding="utf-8") for file in DASHBOARDS}


@each_dashboard
def test_dashboards_follow_grafanas_schema(file: Path) -> None:
    """Grafana's dashboard types, as its SDK generates them, know every field and allow every value."""
    register_default_plugins()
    raw = dashboard(file)
    parsed = Dashboard.from_json(raw)
    assert list(lost(raw, json.loads(json.dumps(parsed, cls=JSONEncoder)), file.stem)) == []
    assert list(violations(parsed, Dashboard, file.stem)) == []


def test_the_schema_check_finds_what_is_wrong() -> None:
    """A value of the wrong type, a value that is not offered, and a field nobody knows are each found."""
    register_default_plugins()
    raw = json.loads(json.dumps(dashboard(DASHBOARDS[0])))
    panel = next(panel for panel in panels(raw) if "thresholds" in panel["fieldConfig"]["defaults"])
    panel["gridPos"]["w"] = "wide"
    panel["fieldConfig"]["defaults"]["thresholds"]["mode"] = "sometimes"
    panel["colour"] = "red"
    parsed = Dashboard.from_json(raw)
    found = [*violations(parsed, Dashboard, "it"), *lost(raw, json.loads(json.dumps(parsed, cls=JSONEncoder)), "it")]
    assert [line.split(": ")[1] for line in found] == [
        "'wide' is no int",
        "'sometimes' is no ThresholdsMode",
        "unknown",
    ]


@each_dashboard
def test_every_panel_explains_itself(file: Path) -> None:
    """Each panel has a title, a description, a unit and at least one query; no two share an id or a place."""
    board = dashboard(file)
    for panel in panels(board):
        assert panel["title"]
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in board["panels"])
        for x in range(place.get("x", 0), place.get("x", 0) + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@each_dashboard
def test_dashboards_can_be_chosen_and_not_changed(file: Path) -> None:
    """A dashboard has variables for model and version, marks model loads, and is read-only."""
    board = dashboard(file)
    assert [variable["name"] for variable in board["templating"]["list"]][:2] == ["model", "version"]
    assert "Model loads" in [mark["name"] for mark in board["annotations"]["list"]]
    assert board["editable"] is False


def test_scores_are_told_apart_as_the_service_does() -> None:
    """The owner's board counts a score as certainty where the service would call a refusal unsure."""
    board = dashboard(GRAFANA / "dashboards" / "owner.json")
    named = {
        (panel["title"], operator): set(scores.split("|"))
        for panel in panels(board)
        for target in panel["targets"]
        for operator, scores in re.findall(r'score(=~|!~)"([^"]*)"', target["expr"])
    }
    assert len(named) == 4
    assert all(operator == ("=~" if "certainty" in title else "!~") for title, operator in named)
    assert set(map(frozenset, named.values())) == {SOFTMAX_SCORES}


def lost(raw: Any, parsed: Any, where: str) -> typing.Iterator[str]:
    """Where Grafana's types drop something: fields that they do not know."""
    if isinstance(raw, dict) and isinstance(parsed, dict):
        for key, value in raw.items():
            yield from lost(value, parsed[key], f"{where}.{key}") if key in parsed else [f"{where}.{key}: unknown"]
    elif isinstance(raw, list) and isinstance(parsed, list) and len(raw) == len(parsed):
        for i, (item, other) in enumerate(zip(raw, parsed, strict=True)):
            yield from lost(item, other, f"{where}[{i}]")
    elif raw != parsed:
        yield f"{where}: {raw!r} became {parsed!r}"


def violations(value: Any, hint: Any, where: str) -> typing.Iterator[str]:
    """Where a value is not what its type hint says, down through all its fields."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if type(value) in (option, typing.get_origin(option))]
        attempts = [list(violations(value, option, where)) for option in options or typing.get_args(hint)]
        if all(attempts):
            yield from attempts[0]
    elif typing.get_origin(hint) is list:
        if not isinstance(value, list):
            yield f"{where}: {value!r} is no list"
            return
        for i, item in enumerate(value):
            yield from violations(item, typing.get_args(hint)[0], f"{where}[{i}]")
    elif typing.get_origin(hint) is typing.Literal:
        if value not in typing.get_args(hint):
            yield f"{where}: {value!r} is none of {typing.get_args(hint)}"
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in [member.value for member in hint]:
            yield f"{where}: {value!r} is no {hint.__name__}"
    elif hint is float and type(value) is int:
        return
    elif isinstance(hint, type) and (not isinstance(value, hint) or (hint is int and value is True)):
        yield f"{where}: {value!r} is no {hint.__name__}"
    elif hasattr(value, "to_json"):
        # The value's own class says more than the base class or `object` that the hint may name.
        for field, field_hint in hints_of(type(value)).items():
            yield from violations(getattr(value, field), field_hint, f"{where}.{field}")
