"""No field of bundle.json is read and ignored: change any one, and an answer changes or the load is refused."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from service.errors import BundleError
from service.model.bundle import Input, load_bundle
from service.model.images import fit_array
from service.settings import Settings
from service.web.app import Application, create_app
from tests.conftest import BundleFolder, make_bundle, solid
from tests.pair_bundles import make_pair_bundle

IMAGES = [solid(colour, (12, 7)) for colour in ((250, 30, 10), (0, 90, 200), (128, 128, 128))]


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every place in a JSON document that holds no further object."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path, value
        return
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def changed(value: Any) -> Any:
    """Another value of the same type, as a careless hand might leave it."""
    if isinstance(value, bool) or value is None:
        return 1
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.7 + 0.011
    if value.startswith("20"):
        return "2031" + value[4:]
    return ("1" if value[0] != "1" else "2") + value[1:]


@asynccontextmanager
async def running(app: Application) -> AsyncIterator[None]:
    """Starts and stops an application as a server does."""
    to_app: asyncio.Queue[Any] = asyncio.Queue()
    from_app: asyncio.Queue[Any] = asyncio.Queue()
    life = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, to_app.get, from_app.put))
    await to_app.put({"type": "lifespan.startup"})
    if (await from_app.get())["type"] == "lifespan.startup.failed":
        await life  # raises what stopped the start
    yield
    await to_app.put({"type": "lifespan.shutdown"})
    await life


async def everything_answered(models: Path, known: str | None) -> list[str]:
    """/v1/models, and unless that differs from what is known: predictions under each gate, and the reference."""
    app = create_app(Settings(models=models, device="cpu", threads=1, max_batch=1))
    transport = httpx.ASGITransport(app)
    async with running(app), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        shown = (await client.get("/v1/models")).text
        if known is not None and shown != known:
            return [shown]
        answers: list[Any] = []
        for image in IMAGES:
            scores = ("max_softmax", "energy", "max_logit", "typicality")
            policies = ({"policy": policy} for policy in ("tpr95", "foreign_only", "accept_all"))
            for query in ({}, {"preprocess": "true"}, *policies, *({"score": score} for score in scores)):
                answer = (await client.post("/v1/predict", content=image, params=query)).json()
                answers.append(answer.get("predictions", answer.get("detail")))
        scrape = (await client.get("/metrics")).text
        answers.append([line for line in scrape.splitlines() if "reference" in line])
    return [shown, json.dumps(answers)]


def set_field(path: tuple[str | int, ...], value: Any) -> Callable[[dict[str, Any]], None]:
    def change(raw: dict[str, Any]) -> None:
        inner: Any = raw
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return change


def remove_field(path: tuple[str | int, ...]) -> Callable[[dict[str, Any]], None]:
    def change(raw: dict[str, Any]) -> None:
        inner: Any = raw
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]

    return change


def outcome(folder: BundleFolder, models: Path, before: list[str] | None = None) -> list[str]:
    try:
        load_bundle(folder.folder)
        return asyncio.run(everything_answered(models, before and before[0]))
    except BundleError as error:
        return [f"refused: {error}"]


def with_commands(raw: dict[str, Any]) -> None:
    """What bundles hold of how they were made, as they do since there is `provenance.commands`."""
    raw["provenance"] |= {
        "commands": ["confgate-train fit tiny --out runs/tiny", "confgate-train export runs/tiny"],
        "resolved_recipe": {"name": "tiny", "optimiser": {"epochs": 2}, "labels": ["red", "green"]},
    }


KINDS: dict[str, Callable[[Path], BundleFolder]] = {
    "confidence": lambda models: make_bundle(models, all_scores=True, change=with_commands),
    "plain": lambda models: make_bundle(models, confidence=False, all_scores=True),
    "pairs": make_pair_bundle,
    "one image at a time": lambda models: make_bundle(
        models, batch=1, all_scores=True, change=lambda raw: raw.update(max_batch=1)
    ),
}


def stands_for_others(path: tuple[str | int, ...]) -> bool:
    """Two of a row stand for all, also of the rows of a joint histogram."""
    rows = [place for key, place in pairwise(path) if isinstance(place, int) and key not in ("labels", "evaluation")]
    return all(place in (0, 5) for place in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_matters(models: Path, kind: str) -> None:
    """Changing any single value of bundle.json changes an answer or is refused."""
    folder = KINDS[kind](models)
    original = json.loads((folder.folder / "bundle.json").read_text())
    before = outcome(folder, models)
    assert len(before) == 2
    ignored = []
    for path, value in leaves(original):
        if not stands_for_others(path):
            continue
        (folder.folder / "bundle.json").write_text(json.dumps(original))
        folder.rewrite(set_field(path, changed(value)))
        if outcome(folder, models, before) == before:
            ignored.append(path)
    assert not ignored


@pytest.mark.parametrize("kind", ["confidence", "pairs", "one image at a time"])
def test_each_field_is_needed(models: Path, kind: str) -> None:
    """Leaving out any single field changes an answer or is refused, unless the field is optional and unset."""
    folder = KINDS[kind](models)
    original = json.loads((folder.folder / "bundle.json").read_text())
    before = outcome(folder, models)
    for path in {leaf[: i + 1] for leaf, _ in leaves(original) for i in range(len(leaf))}:
        # These have defaults, which are what this bundle says.
        edges = ("edges", "familiarity_edges", "certainty_edges")
        if path[-1] in ("external_data", "crop_fraction", "decode_margin", *edges) or isinstance(path[-1], int):
            continue
        (folder.folder / "bundle.json").write_text(json.dumps(original))
        folder.rewrite(remove_field(path))
        assert outcome(folder, models, before) != before, path


def test_input_rules_are_all_implemented() -> None:
    """Each resize rule and interpolation gives another input to the graph than every other."""
    picture = np.random.default_rng(0).integers(0, 256, (31, 57, 3), dtype=np.uint8)
    rules = [
        Input(width=8, height=8, resize=resize, interpolation=interpolation, crop_fraction=fraction)
        for interpolation in ("nearest", "bilinear", "bicubic")
        for resize, fraction in (("stretch", 1.0), ("fit_crop", 1.0), ("fit_crop", 0.8))
    ]
    assert len({fit_array(picture, rule).tobytes() for rule in rules}) == len(rules)
