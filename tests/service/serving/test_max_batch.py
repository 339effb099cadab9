"""A graph that takes one image at a time is served one at a time, whatever the service allows."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.errors import BundleError
from service.model.bundle import load_bundle
from service.model.session import open_session
from tests.conftest import BLUE, GREEN, RED, make_bundle
from tests.running_service import Service


def one_at_a_time(models: Path) -> Path:
    """A bundle whose graphs are fixed to one image, as its max_batch says."""
    return make_bundle(models, batch=1, change=lambda raw: raw.update(max_batch=1)).folder


def test_many_images_are_answered_one_by_one(models: Path) -> None:
    """A request with forty images, and many requests at once, are all answered; every batch holds one image."""
    one_at_a_time(models)
    service = Service(models, "--max-batch", "32").wait_until_serving()
    try:
        files = [("file", (f"{k}.png", (RED, GREEN, BLUE)[k % 3])) for k in range(40)]
        with httpx.Client(base_url=service.url, timeout=60) as client:
            answer = client.post("/v1/predict", files=files).json()["predictions"]
            # A connection for each request: threads that share a client's connections may close each other's.
            ask = partial(httpx.post, f"{service.url}/v1/predict", content=RED, timeout=60)
            with ThreadPoolExecutor(12) as threads:
                asked = list(threads.map(lambda _: ask().json(), range(60)))
            shown = client.get("/v1/models").json()["models"][0]["versions"][0]
            metrics = client.get("/metrics").text
        assert [row["label"] for row in answer] == [("red", "green", "blue")[k % 3] for k in range(40)]
        assert all(row["predictions"][0]["label"] == "red" for row in asked)
        assert shown["max_batch"] == 1
        batches = [line for line in metrics.splitlines() if "batch" in line and not line.startswith("#")]
        counted = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in batches if "perturbed" not in line}
        assert counted["confgate_batch_size_sum"] == counted["confgate_batch_size_count"] == 100
    finally:
        service.stop()


def test_a_session_runs_a_batch_in_parts(models: Path) -> None:
    """Whoever hands many images to the session, as evaluation does, gets the same rows as one by one."""
    session = open_session(load_bundle(one_at_a_time(models)), "forward", "cpu", 1)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    together = session.run(images)
    for name, rows in together.items():
        alone = np.concatenate([session.run(images[k : k + 1])[name] for k in range(5)])
        np.testing.assert_array_equal(rows, alone)


def test_a_fixed_graph_without_the_field_is_refused(models: Path) -> None:
    """Nothing but max_batch 1 excuses a graph that cannot take a batch."""
    folder = make_bundle(models, batch=1).folder
    with pytest.raises(BundleError, match="N"):
        open_session(load_bundle(folder), "forward", "cpu", 1)


def test_inspect_says_it(models: Path) -> None:
    """`confgate bundle inspect` shows the largest batch."""
    from service.cli.bundle import describe

    assert "batch      at most 1" in describe(load_bundle(one_at_a_time(models)))
